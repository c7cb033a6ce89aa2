# SPDX-License-Identifier: Apache-2.0
"""Mistakes that are easily made in phi4flash, each built into the authors' model on purpose, to
prove that the golden cases show them.

Each function takes a freshly loaded Model of references/phi4flash.py and changes it in place.
"""
import types

import torch

TRAPS = {}  # name -> (dtype of the model, the function)


def trap(name, dtype=torch.float64):
    def add(function):
        TRAPS[name] = dtype, function
        return function
    return add


def kinds(model):
    """The mixers of the Mamba, attention and gated memory layers, with the numbers of theirs."""
    layers = list(enumerate(layer.attn for layer in model.network.model.layers))
    memory = len(layers) // 2
    return ([(number, mixer) for number, mixer in layers if not number % 2 and number <= memory],
            [(number, mixer) for number, mixer in layers if number % 2],
            [(number, mixer) for number, mixer in layers if not number % 2 and number > memory])


def with_globals(module, **names):
    """`module` runs its forward with other global names than its file's."""
    function = type(module).forward
    changed = types.FunctionType(function.__code__, {**function.__globals__, **names},
                                 function.__name__, function.__defaults__, function.__closure__)
    module.forward = types.MethodType(changed, module)


@trap("the memory is taken behind the gate")
def gate_inside_the_scan(model):
    _, mixer = kinds(model)[0][-1]
    gated = []
    mixer.out_proj.register_forward_pre_hook(lambda module, inputs: gated.append(inputs[0]))
    mixer.register_forward_hook(lambda module, inputs, output: (output[0], gated.pop()))


@trap("the gate of the memory's layer is applied twice")
def gate_inside_and_outside(model):
    """As the authors' plain path for one token does."""
    _, mixer = kinds(model)[0][-1]
    rows = mixer.d_inner

    def gate_again(module, inputs):
        hidden, = given
        z = hidden @ mixer.in_proj.weight[rows:].T
        return (inputs[0] * torch.nn.functional.silu(z),)

    given = []
    mixer.register_forward_pre_hook(lambda module, inputs: given.__setitem__(slice(None), inputs))
    mixer.out_proj.register_forward_pre_hook(gate_again)


@trap("q, k and v are bfloat16 in a float32 model", torch.float32)
def bfloat16_attention(model):
    """The authors' file as it is."""
    model.attention_dtype = torch.bfloat16


@trap("the residual stream is bfloat16 in a bfloat16 model", torch.bfloat16)
def residual_of_activations(model):
    class Torch:
        float32 = torch.bfloat16

        def __getattr__(self, name):
            return getattr(torch, name)

    for layer in model.network.model.layers:
        with_globals(layer, torch=Torch())


@trap("the gated memory unit gates the wrong factor")
def memory_as_gate(model):
    swiglu = model.authors.swiglu
    for _, mixer in kinds(model)[2]:
        with_globals(mixer, swiglu=lambda gate, x: swiglu(x, gate))


@trap("z comes before x in in_proj")
def halves_of_in_proj(model):
    for _, mixer in kinds(model)[0]:
        mixer.in_proj.weight.data = mixer.in_proj.weight.roll(mixer.d_inner, 0)


@trap("the gate is the second half of fc1")
def halves_of_fc1(model):
    for layer in model.network.model.layers:
        weight = layer.mlp.fc1.weight
        weight.data = weight.roll(len(weight) // 2, 0)


@trap("lambda_init counts attention layers alone")
def lambda_init_of_attention_layers(model):
    for index, (_, mixer) in enumerate(kinds(model)[1]):
        mixer.inner_cross_attn.lambda_init = model.authors.lambda_init_fn(index)


def change_windows(model, change):
    config = model.network.config
    config.sliding_window = [window and change(window) for window in config.sliding_window]


@trap("the window is one key wider")
def wider_window(model):
    change_windows(model, lambda window: window + 1)


@trap("the window is one key narrower")
def narrower_window(model):
    change_windows(model, lambda window: window - 1)


@trap("the layer that fills the shared cache has a window, too")
def window_in_the_full_layer(model):
    windows = model.network.config.sliding_window
    mixers = dict(kinds(model)[1])
    mixers[len(windows) // 2 + 1].config.sliding_window = [windows[1]] * len(windows)


@trap("cross layers take lambda and sub-norm of the layer whose keys they read")
def shared_lambda(model):
    attention = [mixer for _, mixer in kinds(model)[1]]
    full = len(attention) // 2
    for mixer in attention[full + 1:]:
        mixer.inner_cross_attn = attention[full].inner_cross_attn


@trap("signal and noise are swapped")
def signal_and_noise(model):
    for _, mixer in kinds(model)[1]:
        d = mixer.head_dim
        for parameter in (mixer.Wqkv.weight, mixer.Wqkv.bias):
            heads = parameter.unflatten(0, (-1, 2, d))
            values = 0 if mixer.yoco_cross else mixer.num_key_value_heads // 2
            keep = heads[len(heads) - values:]
            parameter.data = torch.cat([heads[:len(heads) - values].flip(1), keep]).flatten(0, 2)


@trap("the taps of the convolution are reversed")
def reversed_taps(model):
    for _, mixer in kinds(model)[0]:
        mixer.conv1d.weight.data = mixer.conv1d.weight.flip(-1)


@trap("D is left out")
def without_d(model):
    for _, mixer in kinds(model)[0]:
        mixer.D.data.zero_()
