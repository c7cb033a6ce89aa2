# SPDX-License-Identifier: Apache-2.0
"""Reference for Motif (differential) and Motif-2 (grouped differential): the vendor's own model
code, run on the CPU.

Needs a checkout of github.com/MotifTechnologies/vllm (Apache-2.0), branch motif, and the package
einops. Three files are imported as they are, all that is Motif's own:
  vllm/model_executor/models/motif.py                 layers, biases, lambda_init, sizes
  vllm/v1/attention/backends/grouped_diff_attn.py     splitting of heads, the four attention calls,
                                                      lambda, sub-norm
  vllm/model_executor/layers/layernorm.py             RMSNorm, PolyNorm
The rest of vLLM is replaced by the stand-ins of this file: parallel linear layers by plain ones,
the paged flash attention by a CPU one that reads the cache the backend fills, the rotary embedding
by references/stand_ins.py, the model around the layers by a loop. Only default rotary frequencies
are known here.
"""
import importlib.util
import sys
import types

import torch

from references import stand_ins, tensors

COMMIT = "477e4d79"
SHA256 = {
    "vllm/model_executor/models/motif.py":
        "5b1b17dc85cfdb5664c16ce327c77124b80703edf9dd45bef5de9d2916421428",
    "vllm/v1/attention/backends/grouped_diff_attn.py":
        "ef505db254fd19c0366fbb955120fdfd9ddff5f634a1d674decafd9c8cd5365f",
    "vllm/model_executor/layers/layernorm.py":
        "8fa932415d909ab40e2812cc8043decb780b0a1133d7799568c1ec5d081d5e93",
}
CACHE_BLOCK = 16  # slots; the backend wants a multiple of 16


class NamesOnly(types.ModuleType):
    """A module of vLLM of which only names are needed; `Name[...]` is allowed, too."""
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__class_getitem__": classmethod(lambda cls, item: cls)})


class CustomOp(torch.nn.Module):
    @classmethod
    def register(cls, name):
        return lambda op: op

    def forward(self, *args):
        return self.forward_native(*args)


class Linear(torch.nn.Module):
    """Several output widths in one matrix; vLLM's layers return (output, bias that was not
    added)."""

    def __init__(self, input_size, output_size, bias):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(output_size, input_size))
        self.bias = torch.nn.Parameter(torch.zeros(output_size)) if bias else None

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight, self.bias), None


class MergedColumnParallelLinear(Linear):
    def __init__(self, input_size, output_sizes, bias, quant_config, prefix):
        super().__init__(input_size, sum(output_sizes), bias)


class QKVParallelLinear(Linear):
    def __init__(self, hidden_size, head_size, total_num_heads, total_num_kv_heads, bias,
                 quant_config, prefix):
        super().__init__(hidden_size, (total_num_heads + 2 * total_num_kv_heads) * head_size, bias)


class RowParallelLinear(Linear):
    def __init__(self, input_size, output_size, bias, quant_config, prefix, reduce_results=True):
        super().__init__(input_size, output_size, bias)


class Rotary:
    def __init__(self, head_size, rotary_dim, max_position, is_neox_style, rope_parameters):
        assert head_size == rotary_dim and is_neox_style and set(rope_parameters) == {"rope_theta"}
        self.head_size, self.theta = head_size, rope_parameters["rope_theta"]

    def forward_native(self, positions, q, k):
        cos, sin = stand_ins.cos_sin(self.theta, self.head_size, positions, q.dtype)
        return tuple(
            stand_ins.rotate_halves(x.unflatten(-1, (-1, self.head_size)), cos, sin).flatten(-2)
            for x in (q, k))


class Attention(torch.nn.Module):
    """vLLM's attention layer: one sequence from its first token, on a paged cache of its own."""

    def __init__(self, num_heads, head_size, scale, num_kv_heads, cache_config, quant_config,
                 per_layer_sliding_window, attn_type, prefix, attn_backend, **more):
        super().__init__()
        self.backend = sys.modules[
            "vllm.attention.backends.registry"].AttentionBackendEnum.GROUPED_DIFF_ATTN
        self.back_end, self.num_kv_heads, self.head_size = attn_backend, num_kv_heads, head_size
        # The list of widths is that of the flash kernels; a test model's are smaller.
        attn_backend.validate_head_size = classmethod(lambda cls, size: None)
        self.impl = attn_backend.get_impl_cls()(num_heads, head_size, scale, num_kv_heads, None,
                                                per_layer_sliding_window, "auto", None, attn_type,
                                                None, **more)
        self._q_scale = self._k_scale = self._v_scale = torch.ones(1)

    def forward(self, q, k, v, output_shape):
        rows = q.shape[0]
        blocks = -(-rows // CACHE_BLOCK)
        cache = torch.full(
            self.back_end.get_kv_cache_shape(blocks, CACHE_BLOCK, self.num_kv_heads,
                                             self.head_size), float("nan"), dtype=q.dtype)
        table = torch.arange(blocks).flip(0)  # not in order
        slots = (table[:, None] * CACHE_BLOCK + torch.arange(CACHE_BLOCK)).flatten()[:rows]
        ends = torch.tensor([0, rows])
        metadata = self.back_end.get_metadata_cls()(num_actual_tokens=rows, max_query_len=rows,
                                                    query_start_loc=ends, max_seq_len=rows,
                                                    seq_lens=ends[1:], block_table=table[None],
                                                    slot_mapping=slots, use_cascade=False,
                                                    common_prefix_len=0, cu_prefix_query_lens=None,
                                                    prefix_kv_lens=None, suffix_kv_lens=None)
        output = torch.empty(output_shape, dtype=q.dtype)
        return self.impl.forward(self, q, k, v, cache, metadata, output)


def fill_cache(key, value, key_cache, value_cache, slots, kv_cache_dtype, k_scale, v_scale):
    key_cache.flatten(0, 1)[slots] = key
    value_cache.flatten(0, 1)[slots] = value


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, seqused_k, softmax_scale, causal, alibi_slopes,
                           window_size, block_table, softcap, **schedule):
    assert causal and alibi_slopes is None and window_size == (
        -1, -1) and not softcap and len(cu_seqlens_q) == 2
    keys = int(seqused_k[0])
    k, v = (cache[block_table[0]].flatten(0, 1)[:keys] for cache in (k, v))
    return stand_ins.causal_attention(q, k, v, softmax_scale)


def install_stand_ins():
    for name in ("vllm", "vllm._custom_ops", "vllm._aiter_ops", "vllm.attention",
                 "vllm.attention.backends", "vllm.attention.backends.abstract",
                 "vllm.attention.backends.registry", "vllm.attention.layer", "vllm.attention.utils",
                 "vllm.attention.utils.fa_utils", "vllm.config", "vllm.distributed", "vllm.logger",
                 "vllm.model_executor", "vllm.model_executor.custom_op",
                 "vllm.model_executor.layers", "vllm.model_executor.layers.batch_invariant",
                 "vllm.model_executor.layers.linear", "vllm.model_executor.layers.quantization",
                 "vllm.model_executor.layers.rotary_embedding", "vllm.model_executor.models",
                 "vllm.model_executor.models.adapters", "vllm.model_executor.models.llama",
                 "vllm.model_executor.models.utils", "vllm.platforms", "vllm.v1",
                 "vllm.v1.attention", "vllm.v1.attention.backends",
                 "vllm.v1.attention.backends.utils", "vllm.v1.kv_cache_interface"):
        sys.modules[name] = NamesOnly(name)
    here = sys.modules
    vars(here["vllm.distributed"]).update(get_tensor_model_parallel_world_size=lambda: 1)
    vars(here["vllm.platforms"]).update(current_platform=types.SimpleNamespace(
        is_rocm=lambda: False))
    vars(here["vllm.logger"]).update(init_logger=lambda name: None)
    vars(here["vllm.model_executor.custom_op"]).update(CustomOp=CustomOp)
    vars(here["vllm.model_executor.layers.linear"]).update(
        MergedColumnParallelLinear=MergedColumnParallelLinear, QKVParallelLinear=QKVParallelLinear,
        RowParallelLinear=RowParallelLinear)
    vars(here["vllm.model_executor.layers.rotary_embedding"]).update(
        get_rope=lambda head_size, **rest: Rotary(head_size, **rest))
    vars(here["vllm.model_executor.models.adapters"]).update(as_seq_cls_model=lambda model: model)
    vars(here["vllm.model_executor.models.utils"]).update(
        extract_layer_index=lambda prefix: int(prefix.split(".")[2]))
    vars(here["vllm.attention.backends.abstract"]).update(
        AttentionType=types.SimpleNamespace(DECODER="decoder"),
        is_quantized_kv_cache=lambda dtype: False)
    vars(here["vllm.attention.backends.registry"]).update(
        AttentionBackendEnum=types.SimpleNamespace(GROUPED_DIFF_ATTN="GROUPED_DIFF_ATTN"))
    vars(here["vllm.attention.layer"]).update(Attention=Attention)
    vars(here["vllm.attention.utils.fa_utils"]).update(
        is_flash_attn_varlen_func_available=lambda: True, get_flash_attn_version=lambda: 2,
        flash_attn_varlen_func=flash_attn_varlen_func, reshape_and_cache_flash=fill_cache)
    vars(here["vllm.v1.attention.backends.utils"]).update(
        AttentionCGSupport=types.SimpleNamespace(ALWAYS=0, UNIFORM_BATCH=1))
    library = torch.library.Library("_C_cache_ops", "DEF")
    library.define(
        "reshape_and_cache_flash(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) "
        "value_cache, "
        "Tensor slots, str kv_cache_dtype, Tensor k_scale, Tensor v_scale) -> ()")
    library.impl("reshape_and_cache_flash", fill_cache, "CPU")
    return library  # lives as long as the operator is wanted


def import_layers(checkout):
    for path, sha256 in SHA256.items():
        tensors.warn_unless_same(checkout / path, sha256)
    for path in ("vllm/model_executor/layers/layernorm.py",
                 "vllm/v1/attention/backends/grouped_diff_attn.py",
                 "vllm/model_executor/models/motif.py"):
        name = path.removesuffix(".py").replace("/", ".")
        spec = importlib.util.spec_from_file_location(name, checkout / path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules["vllm.model_executor.models.motif"], sys.modules[
        "vllm.model_executor.layers.layernorm"]


class Motif:
    def __init__(self, checkout):
        self.library = install_stand_ins()
        self.motif, self.layernorm = import_layers(checkout)

    def name(self, config):
        return (f"MotifTechnologies/vllm {COMMIT} motif.py, grouped_diff_attn.py, layernorm.py, "
                "CPU stand-ins for paged flash attention, rotary embedding and linear layers")

    def shapes(self, folder):
        config = tensors.read_config(folder)
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        noise_heads = config.get("num_noise_heads", heads // 2)
        head_dim = config.get("head_dim") or hidden // heads
        mlp_bias = config.get("use_bias", False)
        output_bias = config.get("attention_bias", False) or mlp_bias
        qkv_bias = config.get("qkv_bias", output_bias)
        shapes = tensors.shell_shapes(config)

        def add(name, out_features, in_features, bias):
            shapes[name + ".weight"] = (out_features, in_features)
            if bias:
                shapes[name + ".bias"] = (out_features,)

        for layer in range(config["num_hidden_layers"]):
            attention, mlp = f"model.layers.{layer}.self_attn.", f"model.layers.{layer}.mlp."
            add(attention + "q_proj", heads * head_dim, hidden, qkv_bias)
            add(attention + "k_proj", kv_heads * head_dim, hidden, qkv_bias)
            add(attention + "v_proj", kv_heads * head_dim, hidden, qkv_bias)
            add(attention + "o_proj", hidden, 2 * (heads - noise_heads) * head_dim, output_bias)
            shapes.update({
                attention + name: (head_dim, )
                for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
            })
            shapes[attention + "subln.weight"] = (2 * head_dim,)
            add(mlp + "gate_proj", inner, hidden, mlp_bias)
            add(mlp + "up_proj", inner, hidden, mlp_bias)
            add(mlp + "down_proj", hidden, inner, mlp_bias)
            shapes[mlp + "act_fn.weight"] = (3,)
            shapes[mlp + "act_fn.bias"] = (1,)
        return shapes

    def load(self, folder, dtype):
        config, weights = tensors.read_config(folder), tensors.read_tensors(folder)
        namespace = types.SimpleNamespace(**config)
        vllm_config = types.SimpleNamespace(model_config=types.SimpleNamespace(hf_config=namespace),
                                            cache_config=None, quant_config=None)
        layers = []
        for layer in range(config["num_hidden_layers"]):
            made = self.motif.MotifDecoderLayer(vllm_config, f"model.layers.{layer}")
            made.load_state_dict(fused(made.state_dict(), weights, f"model.layers.{layer}."))
            for name, parameter in made.named_parameters():
                if "lambda_" not in name:  # the layer declares these float32
                    parameter.data = parameter.data.to(dtype)
            layers.append(made)
        norm = self.layernorm.RMSNorm(config["hidden_size"], config["rms_norm_eps"])
        norm.weight.data = weights["model.norm.weight"].to(dtype)
        embedding = weights["model.embed_tokens.weight"].to(dtype)
        head = weights["lm_head.weight"].to(dtype) if "lm_head.weight" in weights else embedding

        def logits(tokens):
            hidden, residual = embedding[tokens], None
            for layer in layers:
                hidden, residual = layer(torch.arange(len(tokens)), hidden, residual)
            hidden, _ = norm(hidden, residual)
            return (hidden @ head.T).float()

        return logits


def fused(wanted, weights, prefix):
    """The tensors of one layer under vLLM's names: q, k, v and gate, up are one matrix each."""
    parts = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
    state = {}
    for name in wanted:
        owner, _, kind = name.rpartition(".")
        parent, _, last = owner.rpartition(".")
        if last in parts:
            state[name] = torch.cat(
                [weights[f"{prefix}{parent}.{part}.{kind}"] for part in parts[last]])
        else:
            state[name] = weights[prefix + name]
    return state
