// SPDX-License-Identifier: Apache-2.0
// The Decoder's layers with a state: Mamba, and the gated memory units that read a Mamba layer's
// output.
#include "kernels/mamba/causal_conv.h"
#include "kernels/mamba/gated_memory.h"
#include "kernels/mamba/selective_scan.h"
#include "models/decoder_cuda.h"

namespace diffserve::cuda {

// hidden += W_out(scan(conv(W_in norm(hidden)))); the sequences' states advance by their tokens.
Status Decoder::Mamba(int l, const DeviceStep& step, KvCache& kv) {
  const Workspace& work = parts_.work;
  const Weights::Layer& layer = parts_.weights.layers[static_cast<size_t>(l)];
  const MambaSpec& mamba = parts_.config.mamba;
  const int tokens = rows_.tokens;
  auto* const normed = work.normed.as<BFloat16>();
  auto* const projected = work.projected.as<BFloat16>();
  auto* const convolved = work.convolved.as<BFloat16>();
  auto* const selection = work.selection.as<BFloat16>();
  auto* const dt = work.dt.as<BFloat16>();
  // The input of the convolution, x, and the gate, z.
  FewRowsNorm inside;
  DS_RETURN_IF_ERROR(NormFor({&layer.in_proj}, layer.input_norm, layer.input_norm_bias, &inside));
  DS_RETURN_IF_ERROR(Multiply<BFloat16>(layer.in_proj,
                                        {.x = normed, .num_tokens = tokens, .y = projected},
                                        {.inside = inside, .next = Next(layer.mixer_out)}));

  // The convolution over the last tokens.
  CausalConvArgs<BFloat16> conv;
  conv.x = projected;
  conv.x_stride = 2 * int64_t{mamba.inner};
  conv.taps = layer.conv_taps.as<float>();
  conv.bias = layer.conv_bias.as<float>();
  conv.out = convolved;
  conv.state = kv.StatesFrom(parts_.config.StateBegin(l));
  conv.channels = mamba.inner;
  conv.width = mamba.conv_width;
  for (const StateBatch& wave : step.waves) {
    conv.batch = wave;
    DS_RETURN_IF_ERROR(CausalConv(conv, stream_));
  }

  // The inputs of the selection: dt, B and C of each token.
  DS_RETURN_IF_ERROR(
      Multiply<BFloat16>(layer.x_proj, {.x = convolved, .num_tokens = tokens, .y = selection}));
  DS_RETURN_IF_ERROR(Multiply<BFloat16>(
      layer.dt_proj, {.x = selection,
                      .num_tokens = tokens,
                      .y = dt,
                      .x_stride = mamba.dt_rank + 2 * int64_t{mamba.state_dim}}));

  DS_RETURN_IF_ERROR(Scan(l, step, kv));

  // Its output joins the residual stream.
  return AddToHidden(layer, work.scanned);
}

// Scans the convolution's output and applies the gate. The memory for later layers is not gated.
Status Decoder::Scan(int l, const DeviceStep& step, KvCache& kv) {
  const Workspace& work = parts_.work;
  const Weights::Layer& layer = parts_.weights.layers[static_cast<size_t>(l)];
  const LayerConfig& kind = parts_.config.layers[static_cast<size_t>(l)];
  const MambaSpec& mamba = parts_.config.mamba;
  const int rank = mamba.dt_rank;
  const BFloat16* const selection = work.selection.as<BFloat16>();
  const BFloat16* const z = work.projected.as<BFloat16>() + mamba.inner;
  SelectiveScanArgs<BFloat16> scan;
  scan.x = work.convolved.as<BFloat16>();
  scan.dt = work.dt.as<BFloat16>();
  scan.dt_bias = layer.dt_bias.as<float>();
  scan.b = selection + rank;
  scan.c = scan.b + mamba.state_dim;
  scan.bc_stride = rank + 2 * int64_t{mamba.state_dim};
  scan.rates = layer.scan_rates.as<float>();
  scan.skip = layer.scan_skip.as<float>();
  scan.z = kind.makes_memory ? nullptr : z;
  scan.z_stride = 2 * int64_t{mamba.inner};
  scan.out = (kind.makes_memory ? work.memory : work.scanned).as<BFloat16>();
  scan.state = kv.StatesFrom(parts_.config.StateBegin(l) + mamba.conv_floats());
  scan.channels = mamba.inner;
  scan.states = mamba.state_dim;
  for (const StateBatch& wave : step.waves) {
    scan.batch = wave;
    DS_RETURN_IF_ERROR(SelectiveScan(scan, stream_));
  }
  if (kind.makes_memory) {
    DS_RETURN_IF_ERROR(cuda::GatedMemory({.gate = z,
                                          .gate_stride = scan.z_stride,
                                          .memory = work.memory.as<BFloat16>(),
                                          .out = work.scanned.as<BFloat16>(),
                                          .num_tokens = rows_.tokens,
                                          .width = mamba.inner},
                                         stream_));
  }
  return Status();
}

// hidden += W_out(silu(W_in norm(hidden)) * memory), with the memory of the same token.
Status Decoder::GatedMemory(const Weights::Layer& layer) {
  const Workspace& work = parts_.work;
  const int tokens = rows_.tokens, inner = parts_.config.mamba.inner;
  auto* const normed = work.normed.as<BFloat16>();
  auto* const projected = work.projected.as<BFloat16>();
  FewRowsNorm inside;
  DS_RETURN_IF_ERROR(NormFor({&layer.in_proj}, layer.input_norm, layer.input_norm_bias, &inside));
  DS_RETURN_IF_ERROR(Multiply<BFloat16>(layer.in_proj,
                                        {.x = normed, .num_tokens = tokens, .y = projected},
                                        {.inside = inside, .next = Next(layer.mixer_out)}));
  DS_RETURN_IF_ERROR(cuda::GatedMemory({.gate = projected,
                                        .gate_stride = inner,
                                        .memory = work.memory.as<BFloat16>(),
                                        .out = work.scanned.as<BFloat16>(),
                                        .num_tokens = tokens,
                                        .width = inner},
                                       stream_));
  return AddToHidden(layer, work.scanned);
}

}  // namespace diffserve::cuda
