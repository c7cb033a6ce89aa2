# SPDX-License-Identifier: Apache-2.0
"""The golden cases of phi4flash: name -> Case, and the weights that make a case lively."""
import torch

from golden_cases import Case, sizes

FLOAT32_NAMES = ("A_log", "lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
RESIDUAL_CASE = "phi4flash_12_layers_bf16_residual"


def phi4flash(*size, **keys):
    return {
        "model_type": "phi4flash", "architectures": ["Phi4FlashForCausalLM"], **sizes(*size),
        "hidden_act": "silu", "layer_norm_eps": 1e-5, "mb_per_layer": 2, **keys
    }


def windows(layers, window):
    """As the authors' configuration class writes it."""
    return [window if layer < layers // 2 and layer % 2 else None for layer in range(layers)]


# Heads of 16 and widths that are multiples of 8, in some cases, are what the CUDA decoder takes.
PHI4FLASH = {
    # The keys and dtypes of the released checkpoint.
    "phi4flash_as_released_bf16": Case(
        phi4flash(
            32, 4, 2, 8, 48, 101, sliding_window=6, tie_word_embeddings=True,
            torch_dtype="bfloat16", attention_dropout=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
            initializer_range=0.02, pad_token_id=1, use_cache=True, mlp_bias=False,
            lm_head_bias=False, _attn_implementation="flash_attention_2", auto_map={
                "AutoConfig": "configuration_phi4flash.Phi4FlashConfig",
                "AutoModelForCausalLM": "modeling_phi4flash.Phi4FlashForCausalLM"
            }), float32_names=FLOAT32_NAMES),
    RESIDUAL_CASE: Case(
        phi4flash(32, 2, 2, 12, 40, 98, sliding_window=8, mamba_d_state=8,
                  tie_word_embeddings=False, torch_dtype="bfloat16")),
    "phi4flash_12_layers_mha": Case(
        phi4flash(32, 4, 4, 12, 32, 99, sliding_window=8, mamba_d_state=16, mamba_d_conv=4,
                  mamba_expand=2, mamba_dt_rank="auto", mamba_conv_bias=True,
                  mamba_proj_bias=False, rope_theta=10000.0, tie_word_embeddings=True,
                  torch_dtype="float16")),
    "phi4flash_float32_d_state_4": Case(
        phi4flash(32, 4, 2, 8, 24, 97, sliding_window=4, mamba_d_state=4, mamba_dt_rank=2,
                  tie_word_embeddings=True, torch_dtype="float32")),
    "phi4flash_window_list": Case(
        phi4flash(64, 4, 2, 8, 16, 102, sliding_window=windows(8, 5), mamba_d_state=8,
                  mamba_expand=1, tie_word_embeddings=True, dtype="float16")),
    "phi4flash_stored_lm_head_shards": Case(
        phi4flash(32, 2, 2, 8, 40, 100, sliding_window=7, mamba_d_state=8,
                  tie_word_embeddings=True, torch_dtype="float16"), 2),
    "phi4flash_own_lm_head_gqa3": Case(
        phi4flash(48, 6, 2, 8, 24, 96, sliding_window=windows(8, 6), mamba_d_state=8,
                  tie_word_embeddings=False, torch_dtype="float16")),
    "phi4flash_one_pair_dt_rank_3": Case(
        phi4flash(40, 2, 2, 8, 32, 103, sliding_window=5, mamba_d_state=4,
                  tie_word_embeddings=False, torch_dtype="float16", layer_norm_eps=1e-3)),
    "phi4flash_lambda_extremes": Case(
        phi4flash(32, 4, 2, 8, 40, 104, sliding_window=4, mamba_d_state=16,
                  tie_word_embeddings=True, torch_dtype="float16"), lambda_deviation=0.8),
    "phi4flash_long_memory": Case(
        phi4flash(32, 4, 4, 8, 40, 100, sliding_window=7, mamba_d_state=16,
                  tie_word_embeddings=False, torch_dtype="float16")),
}


def random_weights(name, shapes, case, generator):
    """Of the case `name`. Every path matters: attention is neither flat nor one-hot, the states
    forget within one to some tens of tokens, those of the long memory within hundreds.

    In RESIDUAL_CASE each layer adds little to a residual stream whose channels are all near 8,
    which a LayerNorm does not see: so 24 roundings of the stream to bfloat16 do more than all
    others.
    """
    def normal(shape, deviation):
        return torch.randn(shape, generator=generator) * deviation

    drowned = name == RESIDUAL_CASE
    tied = case.config["tie_word_embeddings"]
    made = {}
    for tensor, shape in shapes.items():
        if "lambda_" in tensor:
            made[tensor] = normal(shape, case.lambda_deviation)
        elif "subln" in tensor:
            made[tensor] = 1 + normal(shape, 0.4)
        elif "norm.weight" in tensor:
            made[tensor] = 1 + normal(shape, 0.1)
        elif tensor.endswith("A_log"):
            slowest = -5.0 if "long_memory" in name else -1.5
            made[tensor] = torch.empty(shape).uniform_(slowest, 2.0, generator=generator)
        elif tensor.endswith(".D"):
            made[tensor] = 1 + normal(shape, 0.5)
        elif tensor.endswith("dt_proj.bias"):
            made[tensor] = normal(shape, 1.0) - 1.5
        elif tensor.endswith("out_proj.bias"):
            made[tensor] = normal(shape, 0.06 if drowned else 0.3)
        elif tensor.endswith(".bias"):
            made[tensor] = normal(shape, 0.3)
        elif tensor.endswith("embed_tokens.weight"):
            # Tied weights: a larger embedding would make each token predict itself.
            made[tensor] = 8 + normal(shape, 1) if drowned else normal(shape, 0.4 if tied else 0.8)
        elif tensor.endswith("conv1d.weight"):
            made[tensor] = normal(shape, 0.6)
        elif tensor.endswith(("out_proj.weight", "fc2.weight")):
            made[tensor] = normal(shape, (0.24 if drowned else 0.6) / shape[1] ** 0.5)
        elif tensor.endswith(("in_proj.weight", "fc1.weight")):
            made[tensor] = normal(shape, 1 / shape[1] ** 0.5)
        elif tensor.endswith("x_proj.weight"):
            made[tensor] = normal(shape, 0.7 / shape[1] ** 0.5)
        else:
            made[tensor] = normal(shape, 1.2 / shape[1] ** 0.5)
    if "stored_lm_head" in name:
        made["lm_head.weight"] = made["model.embed_tokens.weight"].clone()
    return made
