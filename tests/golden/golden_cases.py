# SPDX-License-Identifier: Apache-2.0
"""The golden cases: name -> Case. A name begins with its family's: diff_, llama_, unilm_v1_,
unilm_v2_, motif_, motif_gda_."""
import dataclasses

ROPE_LLAMA3 = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64
}
CLASSES = {
    "diffllama": "DiffLlamaForCausalLM", "llama": "LlamaForCausalLM",
    "diff_transformer": "DiffTransformerForCausalLM",
    "diff_transformer_v2": "DiffTransformerV2ForCausalLM", "motif": "MotifForCausalLM"
}


@dataclasses.dataclass
class Case:
    config: dict  # config.json
    shards: int = 1
    lambda_deviation: float = 0.3
    float32_names: tuple = ()  # how the names of tensors end that are float32 in any checkpoint


def sizes(hidden, heads, kv_heads, layers, intermediate, vocab):
    return {
        "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "num_hidden_layers": layers, "intermediate_size": intermediate, "vocab_size": vocab,
        "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2
    }


def config(model_type, size, **keys):
    return {
        "model_type": model_type, "architectures": [CLASSES[model_type]], **sizes(*size), **keys
    }


def diff(*size, **keys):
    return config("diffllama", size, hidden_act="silu", rms_norm_eps=1e-5, **keys)


def llama(*size, **keys):
    return config("llama", size, hidden_act="silu", rms_norm_eps=1e-6, **keys)


def v1(*size, **keys):
    return config("diff_transformer", size, rms_norm_eps=1e-6, **keys)


def v2(*size, **keys):
    return config("diff_transformer_v2", size, rms_norm_eps=1e-6, **keys)


def motif(*size, **keys):
    return config(
        "motif", size, hidden_act="poly_norm", rms_norm_eps=1e-6, **{
            "attn_rms_norm_eps": 1e-5, "use_bias": False, "use_sliding_window": False,
            "sliding_window": None, **keys
        })


DIFF = {
    "diff_mha_tied": Case(
        diff(64, 4, 4, 2, 72, 100, tie_word_embeddings=True, rope_theta=10000.0, rope_scaling=None,
             torch_dtype="float32")),
    "diff_gqa2_bf16": Case(
        diff(64, 8, 4, 3, 88, 120, tie_word_embeddings=False, dtype="bfloat16",
             rope_parameters={"rope_type": "default", "rope_theta": 500000.0})),
    "diff_gqa4_bias": Case(
        diff(64, 8, 2, 1, 112, 99, attention_bias=True, torch_dtype="float32", rope_theta=10000.0)),
    "diff_head_dim_linear": Case(
        diff(48, 4, 2, 2, 51, 97, head_dim=20, torch_dtype="float32", rope_theta=10000.0,
             rope_scaling={"type": "linear", "factor": 4.0})),
    "diff_llama3_bf16_tied": Case(
        diff(64, 4, 2, 2, 96, 128, tie_word_embeddings=True, torch_dtype="bfloat16",
             rope_theta=10000.0, rope_scaling={"rope_type": "llama3", **ROPE_LLAMA3})),
    "diff_llama3_f16_shards": Case(
        diff(64, 8, 4, 4, 80, 101, attention_bias=True, tie_word_embeddings=False, dtype="float16",
             rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, **ROPE_LLAMA3}), 3),
    "diff_linear_five_layers": Case(
        diff(36, 6, 2, 5, 60, 110, head_dim=8, tie_word_embeddings=True, dtype="float32",
             rope_parameters={"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.0}), 2),
    "diff_one_pair_wide": Case(
        diff(64, 2, 2, 2, 72, 96, attention_bias=True, tie_word_embeddings=False,
             torch_dtype="float16", rope_theta=10000.0)),
    "diff_gqa8": Case(
        diff(128, 16, 2, 1, 96, 128, tie_word_embeddings=True, dtype="bfloat16",
             rope_parameters=None)),
    "diff_lambda_extremes": Case(
        diff(48, 4, 4, 3, 48, 112, tie_word_embeddings=True, torch_dtype="float32",
             rope_theta=10000.0), lambda_deviation=0.8),
    "diff_yarn_bf16": Case(
        diff(
            64, 4, 2, 2, 64, 102, tie_word_embeddings=True, torch_dtype="bfloat16",
            rope_theta=10000.0, rope_scaling={
                "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128
            })),
    "diff_yarn_mscale": Case(
        diff(
            48, 4, 2, 2, 56, 98, head_dim=24, tie_word_embeddings=True, dtype="float16",
            rope_parameters={
                "rope_type": "yarn", "rope_theta": 500000.0, "factor": 8.0, "mscale": 1.4,
                "mscale_all_dim": 0.7, "original_max_position_embeddings": 64
            })),
    "diff_yarn_no_truncate": Case(
        diff(
            32, 2, 2, 2, 64, 96, tie_word_embeddings=False, dtype="float16", rope_parameters={
                "rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "truncate": False,
                "beta_fast": 2.0, "beta_slow": 0.25, "original_max_position_embeddings": 32
            })),
    "diff_yarn_factor_null": Case(
        diff(
            48, 4, 4, 2, 48, 103, tie_word_embeddings=True, torch_dtype="float16",
            rope_theta=10000.0, rope_scaling={
                "rope_type": "yarn", "factor": None, "original_max_position_embeddings": 64
            })),
    "diff_dynamic": Case(
        diff(48, 4, 2, 2, 56, 97, tie_word_embeddings=True, torch_dtype="float16",
             rope_theta=10000.0, rope_scaling={"type": "dynamic", "factor": 4.0})),
}

LLAMA = {
    "llama_mha_tied_bf16": Case(
        llama(64, 4, 4, 2, 96, 128, tie_word_embeddings=True, torch_dtype="bfloat16",
              rope_theta=10000.0)),
    "llama_gqa_biases_linear": Case(
        llama(48, 4, 2, 3, 68, 105, attention_bias=True, mlp_bias=True, tie_word_embeddings=False,
              torch_dtype="float32", rope_theta=10000.0,
              rope_scaling={"type": "linear", "factor": 2.0})),
    "llama_head_dim_llama3_shards": Case(
        llama(60, 6, 2, 2, 96, 130, head_dim=16, tie_word_embeddings=False, dtype="float16",
              rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, **ROPE_LLAMA3}), 2),
    "llama_mqa": Case(
        llama(64, 8, 1, 1, 80, 127, tie_word_embeddings=True, dtype="float32",
              rope_parameters={"rope_type": "default", "rope_theta": 10000.0})),
    "llama_yarn_attention_factor": Case(
        llama(
            48, 4, 2, 2, 64, 101, tie_word_embeddings=False, torch_dtype="float16",
            rope_theta=10000.0, rope_scaling={
                "type": "yarn", "factor": 2.0, "attention_factor": 1.25, "beta_fast": 16,
                "beta_slow": 2, "original_max_position_embeddings": 256
            })),
    "llama_yarn_original_outside": Case(
        llama(48, 4, 4, 2, 64, 99, tie_word_embeddings=True, torch_dtype="bfloat16",
              rope_theta=10000.0, original_max_position_embeddings=64,
              rope_scaling={"rope_type": "yarn", "factor": 8.0})),
    "llama_dynamic": Case(
        llama(48, 4, 1, 2, 64, 100, tie_word_embeddings=True, dtype="bfloat16",
              rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0})),
}

UNILM_V1 = {
    "unilm_v1_mha": Case(
        v1(64, 2, 2, 2, 88, 104, tie_word_embeddings=False, torch_dtype="float16",
           rope_theta=10000.0)),
    "unilm_v1_gqa2_bf16": Case(
        v1(64, 4, 2, 3, 80, 110, tie_word_embeddings=False, torch_dtype="bfloat16",
           rope_theta=640000.0)),
    "unilm_v1_gqa4_tied": Case(
        v1(64, 4, 1, 2, 72, 99, tie_word_embeddings=True, torch_dtype="float32",
           rope_theta=10000.0)),
    "unilm_v1_no_subln": Case(
        v1(48, 3, 3, 3, 60, 100, tie_word_embeddings=True, torch_dtype="float16", use_subln=False)),
    "unilm_v1_plain_subln": Case(
        v1(48, 2, 1, 2, 72, 97, tie_word_embeddings=True, torch_dtype="float32",
           subln_affine=False)),
    "unilm_v1_lambda_constant": Case(
        v1(48, 3, 1, 3, 56, 101, tie_word_embeddings=True, torch_dtype="float16", lambda_init=0.8)),
    "unilm_v1_head_dim_shards": Case(
        v1(40, 4, 2, 2, 64, 96, tie_word_embeddings=False, torch_dtype="float16", head_dim=12,
           rope_theta=500000.0), 2),
    "unilm_v1_lambda_extremes": Case(
        v1(48, 3, 3, 4, 40, 98, tie_word_embeddings=True, torch_dtype="float16"),
        lambda_deviation=0.8),
}

UNILM_V2 = {
    "unilm_v2_mha": Case(
        v2(64, 4, 4, 2, 72, 102, head_dim=16, tie_word_embeddings=False, torch_dtype="float16",
           rope_theta=10000.0)),
    "unilm_v2_gqa2_bf16": Case(
        v2(64, 4, 2, 3, 80, 105, head_dim=16, tie_word_embeddings=False, torch_dtype="bfloat16",
           rope_theta=500000.0)),
    "unilm_v2_gqa4_tied": Case(
        v2(48, 4, 1, 3, 64, 100, head_dim=12, tie_word_embeddings=True, torch_dtype="float16",
           rope_theta=10000.0)),
    "unilm_v2_wide_heads": Case(
        v2(40, 3, 3, 2, 56, 97, head_dim=24, tie_word_embeddings=True, torch_dtype="float32")),
    "unilm_v2_one_head_shards": Case(
        v2(48, 6, 2, 2, 64, 98, head_dim=8, tie_word_embeddings=False, torch_dtype="float16",
           rope_theta=10000.0), 2),
}

MOTIF = {
    "motif_mha_tied_bf16": Case(
        motif(
            64, 4, 4, 3, 80, 108, tie_word_embeddings=True, torch_dtype="bfloat16",
            rope_theta=10000.0, auto_map={
                "AutoConfig": "configuration_motif.MotifConfig",
                "AutoModelForCausalLM": "modeling_motif.MotifForCausalLM"
            })),
    "motif_gqa2_long_theta": Case(
        motif(64, 8, 4, 4, 64, 99, tie_word_embeddings=False, torch_dtype="float16",
              rope_theta=500000.0)),
    "motif_use_bias_shards": Case(
        motif(48, 4, 2, 2, 60, 101, tie_word_embeddings=False, torch_dtype="float16",
              rope_theta=10000.0, use_bias=True), 2),
    "motif_qkv_bias_head_dim": Case(
        motif(48, 4, 2, 2, 64, 97, tie_word_embeddings=True, torch_dtype="float32",
              rope_theta=10000.0, head_dim=16, qkv_bias=True, attn_rms_norm_eps=1e-2)),
}

MOTIF_GDA = {
    "motif_gda_ratio4_bf16": Case(
        motif(64, 10, 4, 2, 72, 106, tie_word_embeddings=False, torch_dtype="bfloat16",
              rope_theta=1000000.0, head_dim=16, num_noise_heads=2, k_ratio=1)),
    "motif_gda_ratio2_two_noise_a_group": Case(
        motif(64, 12, 4, 2, 64, 103, tie_word_embeddings=False, torch_dtype="float16",
              rope_theta=1000000.0, head_dim=8, num_noise_heads=4, k_ratio=1)),
    "motif_gda_ratio1": Case(
        motif(48, 8, 8, 3, 56, 98, tie_word_embeddings=True, torch_dtype="float16",
              rope_theta=10000.0, head_dim=8, num_noise_heads=4)),
    "motif_gda_ratio3_bias_shards": Case(
        motif(48, 8, 2, 2, 60, 100, tie_word_embeddings=False, torch_dtype="float16",
              rope_theta=1000000.0, head_dim=12, num_noise_heads=2, use_bias=True), 2),
    "motif_gda_three_noise_one_group": Case(
        motif(40, 12, 2, 2, 64, 97, tie_word_embeddings=True, torch_dtype="float32",
              rope_theta=1000000.0, head_dim=8, num_noise_heads=3, qkv_bias=True,
              attn_rms_norm_eps=1e-3)),
}

CASES = {**DIFF, **LLAMA, **UNILM_V1, **UNILM_V2, **MOTIF, **MOTIF_GDA}
