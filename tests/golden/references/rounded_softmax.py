# SPDX-License-Identifier: Apache-2.0
"""The softmax of a reference's attention, given logits of few bits: rounded in double precision as
kernels/attention/logit_quant.h defines.

transformers' eager attention and stand_ins.py, on which the other authors' modules run, call
softmax for attention alone, with the scaled scores [..., tokens, tokens] of a whole prompt; those
of slots that a token does not see are -inf or nearly so.
"""
import contextlib
import unittest.mock

import torch
from torch.nn import functional

TILE_SLOTS, REACH = 64, 16


def largest(magnitudes, width):
    """Of each run of `width` slots, for each of its slots."""
    return torch.cat([run.amax(-1, keepdim=True).expand_as(run)
                      for run in magnitudes.split(width, dim=-1)], dim=-1)


def rounded(scores, visible, bits, scale):
    """The scores, and how far the nearest boundary between two codes was from each before."""
    if scale == "anchored":
        anchor = scores.masked_fill(~visible, float("-inf")).amax(-1, keepdim=True)
        step = torch.full_like(scores, REACH / (2**bits - 1))
        places = -(anchor - scores).clamp(max=REACH) / step
    else:
        anchor = 0
        width = TILE_SLOTS if scale == "tile" else scores.shape[-1]
        step = largest(scores.abs().masked_fill(~visible, 0), width) / (2**(bits - 1) - 1)
        places = torch.where(step > 0, scores / step, 0)
    distances = (places - places.floor() - 0.5).abs() * step
    return anchor + places.round() * step, distances  # half to even


class RoundedSoftmax:
    """What takes the place of softmax; `distances` [tokens] is, for each query, the least distance
    of a logit from a boundary, as a share of the largest logit of the call."""

    def __init__(self, bits, scale, tokens):
        self.bits, self.scale = bits, scale
        self.distances = torch.full((tokens,), float("inf"), dtype=torch.float64)

    def softmax(self, scores, dim, dtype=None):
        tokens = len(self.distances)
        assert dim == -1 and scores.shape[-2:] == (tokens, tokens)
        visible = scores > torch.finfo(scores.dtype).min / 2
        values, distances = rounded(scores.double(), visible, self.bits, self.scale)
        shares = distances / scores.abs()[visible].amax()
        self.distances = torch.minimum(
            self.distances,
            shares.masked_fill(~visible, float("inf")).reshape(-1, tokens, tokens).amin((0, 2)))
        return values.masked_fill(~visible, float("-inf")).softmax(-1).to(dtype or scores.dtype)

    @contextlib.contextmanager
    def in_place(self):
        patch = unittest.mock.patch.object
        with patch(torch, "softmax", self.softmax), patch(functional, "softmax", self.softmax):
            yield
