# SPDX-License-Identifier: Apache-2.0
"""Two witnesses for phi4flash: what they compute in float64 must be what the authors' file does.

Nvidia     the whole model in plain PyTorch, without kernels, cache or code of the authors: the
           classes Ref... of github.com/NVIDIA/TensorRT-LLM (Apache-2.0) 462587c1,
           tests/unittest/auto_deploy/singlegpu/models/test_phi4flash_modeling.py. It keeps the
           residual stream in the dtype of the activations, so it is asked in float64 alone.
Mamba      the authors' model whose Mamba layers are transformers' MambaMixer (5.23.0), plain
           PyTorch on a CPU; attention, gated memory units and MLPs stay the authors'.
"""
import sys
import types
import unittest.mock

import torch

from references import tensors
from references.phi4flash import arithmetic

NVIDIA_SHA256 = "53b718f21f241429b838ac4e36f9b4c44985c986ab944cd80fe1af62fcc3d390"
SILU_IS_1 = 1.2784645427610737951  # silu of it is 1


class NvidiaConfig(types.SimpleNamespace):
    def to_dict(self):
        return dict(vars(self))


class Nvidia:
    def __init__(self, path):
        tensors.warn_unless_same(path, NVIDIA_SHA256)
        absent = unittest.mock.MagicMock()
        absent.Phi4FlashConfig = NvidiaConfig
        names = ("pytest", "tensorrt_llm", "tensorrt_llm._torch", "tensorrt_llm._torch.auto_deploy")
        parts = ("export", "models", "models.custom", "models.custom.modeling_phi4flash", "utils",
                 "utils._graph")
        names += tuple(f"{names[-1]}.{part}" for part in parts)
        self.file = types.ModuleType("nvidia_reference")
        with unittest.mock.patch.dict(sys.modules, dict.fromkeys(names, absent)):
            exec(compile(path.read_text(), str(path), "exec"), vars(self.file))

    def load(self, folder, config):
        """`config`: of the authors' class, whose values this model takes."""
        keys = {"pad_token_id": None, "mlp_bias": False, "lm_head_bias": False, **vars(config)}
        network = self.file.RefPhi4FlashForCausalLM(NvidiaConfig(**keys)).double()
        weights = {name: tensor.double() for name, tensor in tensors.read_tensors(folder).items()}
        if config.tie_word_embeddings:
            weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
        network.load_state_dict(weights)

        def logits(tokens):
            with torch.no_grad(), arithmetic(torch.float64):
                return network(tokens[None], None)[0]

        return logits


class Mixer(torch.nn.Module):
    """Takes the place of one of the authors' Mamba layers; `gives_memory`: it also returns the
    scan's output before the gate, which a second mixer computes whose gate is always open."""

    def __init__(self, authors, gives_memory):
        super().__init__()
        self.mixer = self.make(authors, torch.nn.Identity())
        self.mixer.out_proj = authors.out_proj
        self.open = self.make(authors, torch.nn.Identity()) if gives_memory else None
        if gives_memory:
            rows = authors.d_inner
            projection = torch.nn.Linear(authors.d_model, 2 * rows, dtype=torch.float64)
            projection.weight.data = authors.in_proj.weight.data.clone()
            projection.weight.data[rows:] = 0
            projection.bias.data.zero_()
            projection.bias.data[rows:] = SILU_IS_1
            self.open.in_proj = projection

    @staticmethod
    def make(authors, output):
        from transformers.models.mamba.modeling_mamba import MambaConfig, MambaMixer
        config = MambaConfig(hidden_size=authors.d_model, state_size=authors.d_state,
                             conv_kernel=authors.d_conv, expand=authors.expand,
                             time_step_rank=authors.dt_rank, num_hidden_layers=1,
                             use_associative_scan=False)
        made = MambaMixer(config, 0).eval().double()
        weights = {name: tensor for name, tensor in authors.state_dict().items()}
        made.load_state_dict(weights)
        made.out_proj = output
        return made

    def forward(self, hidden_states, yoco_key_values=None, **rest):
        memory = self.open(hidden_states) if self.open else yoco_key_values
        return self.mixer(hidden_states), memory


def with_mamba_of_transformers(model):
    """`model`, of references/phi4flash.py in float64, with a Mixer in each of its Mamba layers."""
    layers = model.network.model.layers
    half = len(layers) // 2
    for number in range(0, half + 1, 2):
        layers[number].attn = Mixer(layers[number].attn, number == half)
    return model
