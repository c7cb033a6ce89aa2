# SPDX-License-Identifier: Apache-2.0
"""Reference for phi4flash (SambaY, Phi-4-mini-flash-reasoning): the authors' own modelling file,
run on the CPU in any precision.

Two versions of it can be read, and both are imported as they are:
  released  modeling_phi4flash.py and configuration_phi4flash.py of the repository
            microsoft/Phi-4-mini-flash-reasoning (MIT) on Hugging Face; a copy of it is
            github.com/franciskamande-ai/cloned_models 711ebe7d, folder Phi-4-mini-flash-reasoning
  earlier   github.com/yelongshen/rlray 1d2535a5 xlmlib/modeling_phi3_samba_yocov2_da.py, by one of
            the authors, where the model is called Samba
Needs the package einops. What the files import for GPUs (flash_attn, causal_conv1d,
selective_scan_cuda, mamba_ssm) is replaced by the plain PyTorch of this file, and transformers by
what the files need of it. Their asserts, which want 16 bits on a GPU, are left out.

The released file casts q, k and v to bfloat16 whatever the model's dtype is, as flash attention
wants. Here they are cast to the model's dtype: in bfloat16 that is the same, and in more bits the
model is then what its weights say. Both files hold the residual stream in float32.
"""
import contextlib
import sys
import types
import unittest.mock

import torch
from torch.nn import functional

from references import stand_ins, tensors

PACKAGE = "phi4flash_authors"
RELEASED = "modeling_phi4flash.py"
SHA256 = {
    RELEASED: "ed32f40d3811ef30aa934783ce3040d8a0110ca0349f811f57504073470a7718",
    "configuration_phi4flash.py":
        "8f0bf8b2eb5aca929354c79bc0f40a183a962a87b0cfb8de0abcffcc63ff4546",
    "modeling_phi3_samba_yocov2_da.py":
        "8e494f31fadf7ed9930bd15d9dac11c41618b80799f46eb1d8f1572b41b9a7a4",
}
FLOAT32_NAMES = ("A_log", "lambda_")  # the model declares these float32


@contextlib.contextmanager
def arithmetic(dtype, attention_dtype=None):
    """In here what the authors' code casts to float32 for precision is float64 if `dtype` is, and
    what it casts to bfloat16 for flash attention is of `attention_dtype`, `dtype` if None."""
    patch = unittest.mock.patch.object
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch(torch, "bfloat16", attention_dtype or dtype))
        if dtype == torch.float64:
            stack.enter_context(patch(torch, "float32", torch.float64))
            stack.enter_context(patch(torch.Tensor, "float", torch.Tensor.double))
        yield


def swiglu(gate, x):
    """In float32, as the authors' kernel."""
    gate32 = gate.float()
    return (gate32 * x.float() / (1 + torch.exp(-gate32))).to(gate.dtype)


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1)):
    """q, k, v [1, rows, heads, d]. A window of (n, anything) is, if causal, n keys beside the row's
    own; the scale is the package's default."""
    assert causal and q.shape[0] == 1 and not dropout_p and softmax_scale is None
    window = window_size[0] + 1 if window_size[0] >= 0 else None
    return stand_ins.causal_attention(q[0], k[0], v[0], q.shape[-1] ** -0.5, window)[None]


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
                           **rest):
    """q, k, v [rows, heads, d] of one sequence."""
    assert cu_seqlens_q.tolist() == [0, max_seqlen_q] == [0, len(q)]
    assert cu_seqlens_k.tolist() == [0, max_seqlen_k] == [0, len(k)]
    return flash_attn_func(q[None], k[None], v[None], **rest)[0]


def causal_conv1d_fn(x, weight, bias, activation):
    """x [1, channels, tokens], weight [channels, taps]; the last tap meets the token itself."""
    assert activation == "silu"
    taps = weight.shape[-1]
    padded = functional.pad(x.float(), (taps - 1, 0))
    y = functional.conv1d(padded, weight.float()[:, None], bias.float(), groups=len(weight))
    return functional.silu(y).to(x.dtype)


def causal_conv1d_fwd(x, weight, bias, seq_idx, initial_states, final_states_out, silu_activation):
    assert seq_idx is None and initial_states is None and final_states_out is None
    assert silu_activation
    return causal_conv1d_fn(x, weight, bias, "silu")


def causal_conv1d_update(x, conv_state, weight, bias, activation):
    """x [1, channels] of one token; conv_state [1, channels, taps] gets it and loses the oldest."""
    assert activation == "silu"
    conv_state.copy_(torch.cat([conv_state[..., 1:], x[..., None]], dim=-1))
    y = (conv_state.float() * weight.float()).sum(-1) + bias.float()
    return functional.silu(y).to(x.dtype)


def scan_step(state, x, delta, A, B, C, D):
    """One token: state [1, channels, N], x and delta [1, channels], A [channels, N], B and C
    [1, N]. Returns the new state and y [1, channels]."""
    state = torch.exp(delta[..., None] * A) * state + (delta * x)[..., None] * B[:, None]
    return state, (state * C[:, None]).sum(-1) + D * x


def selective_scan_fwd(u, delta, A, B, C, D, z, delta_bias, delta_softplus):
    """u, delta, z [1, channels, tokens], B, C [1, 1, N, tokens]. Returns y, the last state in the
    odd places of [1, channels, 1, 2 N] and, if z is given, y * silu(z); y is not rounded before."""
    assert delta_softplus
    delta = functional.softplus(delta.float() + delta_bias.float()[:, None])
    x, B, C = u.float(), B[:, 0].float(), C[:, 0].float()
    state, rows = torch.zeros(1, *A.shape, dtype=delta.dtype), []
    for t in range(u.shape[-1]):
        state, row = scan_step(state, x[..., t], delta[..., t], A, B[..., t], C[..., t], D)
        rows.append(row)
    y = torch.stack(rows, dim=-1)
    states = torch.stack([torch.zeros_like(state), state], dim=-1).flatten(-2)[:, :, None]
    gated = [] if z is None else [(y * functional.silu(z.float())).to(u.dtype)]
    return y.to(u.dtype), states, *gated


def selective_state_update(state, x, dt, A, B, C, D, z, dt_bias, dt_softplus):
    """One token; `state` is changed."""
    assert dt_softplus
    delta = functional.softplus(dt.float() + dt_bias.float())
    new_state, y = scan_step(state.float(), x.float(), delta, A, B.float(), C.float(), D.float())
    state.copy_(new_state)
    return (y if z is None else y * functional.silu(z.float())).to(x.dtype)


class Config:
    """What the authors' configuration class wants of transformers': keys become attributes."""
    output_attentions = output_hidden_states = False
    pad_token_id = None
    use_return_dict = True
    _attn_implementation = "flash_attention_2"

    def __init__(self, **keys):
        vars(self).update(keys)


class Network(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config

    def post_init(self):
        pass


class Output(types.SimpleNamespace):
    def __getitem__(self, index):
        return list(vars(self).values())[index]


def transformers_stand_ins():
    module = stand_ins.module
    quiet = types.SimpleNamespace(warning_once=lambda *texts: None)

    def unchanged(*args, **keys):
        return lambda function: function

    outputs = ("BaseModelOutputWithPast", "CausalLMOutputWithPast",
               "SequenceClassifierOutputWithPast", "TokenClassifierOutput")
    decorators = ("add_code_sample_docstrings", "add_start_docstrings",
                  "add_start_docstrings_to_model_forward", "replace_return_docstrings")
    return {
        "transformers": module("transformers", __path__=[]),
        "transformers.activations": module("transformers.activations",
                                           ACT2FN={"silu": functional.silu}),
        "transformers.cache_utils": module("transformers.cache_utils", Cache=type("Cache", (), {}),
                                           DynamicCache=None),
        "transformers.configuration_utils": module("transformers.configuration_utils",
                                                   PretrainedConfig=Config),
        "transformers.generation": module("transformers.generation",
                                          GenerationMixin=type("GenerationMixin", (), {})),
        "transformers.modeling_outputs": module("transformers.modeling_outputs",
                                                **dict.fromkeys(outputs, Output)),
        "transformers.modeling_utils": module("transformers.modeling_utils",
                                              PreTrainedModel=Network),
        "transformers.utils": module(
            "transformers.utils", is_torchdynamo_compiling=lambda: False,
            is_flash_attn_greater_or_equal_2_10=lambda: True,
            logging=types.SimpleNamespace(get_logger=lambda name: quiet),
            **dict.fromkeys(decorators, unchanged)),
    }


def kernel_stand_ins():
    module = stand_ins.module
    padding = {
        "index_first_axis": lambda x, indices: x[indices],
        "pad_input": lambda x, indices, batch, tokens: x.reshape(batch, tokens, *x.shape[1:]),
        "unpad_input": None,  # of a part of a longer sequence, which is not asked for here
    }
    state_update = "mamba_ssm.ops.triton.selective_state_update"
    return {
        "flash_attn": module("flash_attn", __path__=[], flash_attn_func=flash_attn_func,
                             flash_attn_varlen_func=flash_attn_varlen_func),
        "flash_attn.bert_padding": module("flash_attn.bert_padding", **padding),
        "causal_conv1d": module("causal_conv1d", causal_conv1d_fn=causal_conv1d_fn,
                                causal_conv1d_update=causal_conv1d_update),
        "causal_conv1d_cuda": module("causal_conv1d_cuda", causal_conv1d_fwd=causal_conv1d_fwd),
        "selective_scan_cuda": module("selective_scan_cuda", fwd=selective_scan_fwd),
        **{name: module(name, __path__=[])
           for name in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton")},
        state_update: module(state_update, selective_state_update=selective_state_update),
    }


def run_file(path, beside):
    """The names of a file of the authors, its asserts left out; `beside` are the modules it finds
    in its own folder."""
    if path.name in SHA256:
        tensors.warn_unless_same(path, SHA256[path.name])
    made = stand_ins.module(f"{PACKAGE}.{path.stem}", __package__=PACKAGE)
    replaced = {PACKAGE: stand_ins.module(PACKAGE, __path__=[]), **beside,
                **transformers_stand_ins(), **kernel_stand_ins()}
    with unittest.mock.patch.dict(sys.modules, replaced):
        exec(compile(path.read_text(), str(path), "exec", optimize=1), vars(made))
    return made


class Model:
    """One checkpoint in one precision; called with tokens it returns logits [tokens, vocab]."""

    def __init__(self, authors, network, dtype):
        self.authors, self.network, self.dtype = authors, network, dtype
        self.attention_dtype = None  # as `arithmetic` takes it

    def logits(self, tokens, **more):
        with torch.no_grad(), arithmetic(self.dtype, self.attention_dtype):
            output = self.network(input_ids=tokens[None], return_dict=True, **more)
        return output.logits[0].to(torch.promote_types(self.dtype, torch.float32))

    def __call__(self, tokens):
        return self.logits(tokens, use_cache=False)

    def with_cache(self, tokens, prompt):
        """The same by way of the authors' cache: the first `prompt` tokens at once, then each by
        itself."""
        cached = Cached(self, len(tokens))
        return torch.cat([cached(tokens[:prompt]), *map(cached, tokens[prompt:].split(1))])

    def continuation(self, prompt, count):
        """What the model chooses, by way of the cache."""
        cached = Cached(self, len(prompt) + count)
        tokens = [cached(prompt)[-1:].argmax(-1)]
        while len(tokens) < count:
            tokens.append(cached(tokens[-1]).argmax(-1))
        return torch.cat(tokens)


class Cached:
    """A sequence of at most `length` tokens, which are given in pieces: logits of each piece."""

    def __init__(self, model, length):
        self.model, self.seen = model, 0
        with arithmetic(model.dtype):
            self.cache = model.authors.SambaYCache(model.network.config, max_batch_size=1,
                                                   max_cache_len=length, device="cpu",
                                                   dtype=model.dtype)

    def __call__(self, tokens):
        begin, self.seen = self.seen, self.seen + len(tokens)
        return self.model.logits(tokens, use_cache=True, past_key_values=self.cache,
                                 attention_mask=torch.ones(1, self.seen, dtype=torch.int64),
                                 cache_position=torch.arange(begin, self.seen))


class Phi4Flash:
    """`path`: the released modeling_phi4flash.py, or the earlier file; `configuration`: the
    released configuration_phi4flash.py."""

    def __init__(self, path, configuration):
        self.released = path.name == RELEASED
        self.configuration = run_file(configuration, {}).Phi4FlashConfig
        name = f"{PACKAGE}.configuration_" + ("phi4flash" if self.released else "phi3_samba")
        classes = {"Phi4FlashConfig": self.configuration, "SambaConfig": self.configuration}
        self.authors = run_file(path, {name: stand_ins.module(name, **classes)})
        self.authors.swiglu = swiglu
        self.network = (self.authors.Phi4FlashForCausalLM if self.released else
                        self.authors.SambaForCausalLM)

    def name(self, config):
        return ("Phi-4-mini-flash-reasoning modeling_phi4flash.py, in float64, CPU stand-ins for "
                "flash attention, convolution and scan")

    def config(self, folder):
        keys = tensors.read_config(folder)
        windows = keys["sliding_window"]
        if isinstance(windows, list):  # as the class writes it, which cannot read it again
            keys["sliding_window"] = windows[1]
        made = self.configuration(**keys)
        assert not isinstance(windows, list) or made.sliding_window == windows
        if not self.released:
            made.sliding_window = made.sliding_window[1]
        return made

    def shapes(self, folder):
        """Of the tensors that a checkpoint holds."""
        config = self.config(folder)
        shapes = {name: tuple(tensor.shape)
                  for name, tensor in self.network(config).state_dict().items()}
        if config.tie_word_embeddings:
            del shapes["lm_head.weight"]
        return shapes

    def load(self, folder, dtype):
        config, weights = self.config(folder), tensors.read_tensors(folder)
        if config.tie_word_embeddings:
            weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
        network = self.network(config).eval()
        network.load_state_dict(weights)
        for name, parameter in network.named_parameters():
            kept = dtype != torch.float64 and any(part in name for part in FLOAT32_NAMES)
            parameter.data = parameter.data.to(torch.float32 if kept else dtype)
        return Model(self.authors, network, dtype)
