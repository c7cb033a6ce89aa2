// SPDX-License-Identifier: Apache-2.0
// The Decoder's layers with a state: Mamba, and the gated memory units that read a Mamba layer's
// output.
#include <algorithm>

#include "kernels/mamba/causal_conv.h"
#include "kernels/mamba/gated_memory.h"
#include "kernels/mamba/selective_scan.h"
#include "models/decoder.h"

namespace diffserve::cpu {
namespace {

StateBatch BatchOf(const std::vector<StateSequence>& wave) {
  int tokens = 0;
  for (const StateSequence& sequence : wave) tokens += sequence.num_tokens;
  return {wave.data(), static_cast<int>(wave.size()), tokens};
}

}  // namespace

// hidden += W_out(scan(conv(W_in norm(hidden)))); the sequences' states advance by their tokens.
void Decoder::Mamba(int l, KvCache& kv) {
  const Weights::Layer& layer = parts_.weights.layers[static_cast<size_t>(l)];
  const MambaSpec& mamba = parts_.config.mamba;
  const int tokens = rows_.tokens;
  // The input of the convolution, x, and the gate, z.
  Norm(layer.input_norm, layer.input_norm_bias, tokens, work_.normed.data());
  Linear(layer.in_proj,
         {.x = work_.normed.data(), .num_tokens = tokens, .y = work_.projected.data()}, pool_);

  // The convolution over the last tokens.
  CausalConvArgs<float> conv;
  conv.x = work_.projected.data();
  conv.x_stride = 2 * int64_t{mamba.inner};
  conv.taps = layer.conv_taps.data();
  conv.bias = layer.conv_bias.data();
  conv.out = work_.convolved.data();
  conv.state = kv.StatesFrom(parts_.config.StateBegin(l));
  conv.channels = mamba.inner;
  conv.width = mamba.conv_width;
  for (const std::vector<StateSequence>& wave : state_waves_) {
    conv.batch = BatchOf(wave);
    CausalConv(conv, parts_.isa, pool_);
  }

  // The inputs of the selection: dt, B and C of each token.
  Linear(layer.x_proj,
         {.x = work_.convolved.data(), .num_tokens = tokens, .y = work_.selection.data()}, pool_);
  Linear(layer.dt_proj,
         {.x = work_.selection.data(),
          .num_tokens = tokens,
          .y = work_.dt.data(),
          .x_stride = mamba.dt_rank + 2 * int64_t{mamba.state_dim}},
         pool_);

  Scan(l, kv);

  // Its output joins the residual stream.
  AddToHidden(layer, work_.scanned);
}

// Scans the convolution's output and applies the gate. The memory for later layers is not gated.
void Decoder::Scan(int l, KvCache& kv) {
  const Weights::Layer& layer = parts_.weights.layers[static_cast<size_t>(l)];
  const LayerConfig& kind = parts_.config.layers[static_cast<size_t>(l)];
  const MambaSpec& mamba = parts_.config.mamba;
  const int rank = mamba.dt_rank;
  const float* const z = work_.projected.data() + mamba.inner;
  SelectiveScanArgs<float> scan;
  scan.x = work_.convolved.data();
  scan.dt = work_.dt.data();
  scan.dt_bias = layer.dt_bias.data();
  scan.b = work_.selection.data() + rank;
  scan.c = scan.b + mamba.state_dim;
  scan.bc_stride = rank + 2 * int64_t{mamba.state_dim};
  scan.rates = layer.scan_rates.data();
  scan.skip = layer.scan_skip.data();
  scan.z = kind.makes_memory ? nullptr : z;
  scan.z_stride = 2 * int64_t{mamba.inner};
  scan.out = kind.makes_memory ? work_.memory.data() : work_.scanned.data();
  scan.state = kv.StatesFrom(parts_.config.StateBegin(l) + mamba.conv_floats());
  scan.channels = mamba.inner;
  scan.states = mamba.state_dim;
  for (const std::vector<StateSequence>& wave : state_waves_) {
    scan.batch = BatchOf(wave);
    SelectiveScan(scan, parts_.isa, pool_);
  }
  if (kind.makes_memory) {
    cpu::GatedMemory({.gate = z,
                      .gate_stride = scan.z_stride,
                      .memory = work_.memory.data(),
                      .out = work_.scanned.data(),
                      .num_tokens = rows_.tokens,
                      .width = mamba.inner},
                     parts_.isa, pool_);
  }
}

// hidden += W_out(silu(W_in norm(hidden)) * memory), with the memory of the same token.
void Decoder::GatedMemory(const Weights::Layer& layer) {
  const int tokens = rows_.tokens, inner = parts_.config.mamba.inner;
  Norm(layer.input_norm, layer.input_norm_bias, tokens, work_.normed.data());
  Linear(layer.in_proj,
         {.x = work_.normed.data(), .num_tokens = tokens, .y = work_.projected.data()}, pool_);
  cpu::GatedMemory({.gate = work_.projected.data(),
                    .gate_stride = inner,
                    .memory = work_.memory.data(),
                    .out = work_.scanned.data(),
                    .num_tokens = tokens,
                    .width = inner},
                   parts_.isa, pool_);
  AddToHidden(layer, work_.scanned);
}

}  // namespace diffserve::cpu
