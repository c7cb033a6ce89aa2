// SPDX-License-Identifier: Apache-2.0
#include "kernels/mamba/activation_lanes.h"
#include "kernels/mamba/mamba_kernel.h"

namespace diffserve::DS_ISA {
namespace {

constexpr int kStrip = 512;  // channels at a time: their taps and rows stay in the nearest cache

struct ConvChannels {
  int64_t channel;  // the first channel
  int width;
};

constexpr float kZeros[kStrip] = {};

// The strip's part of row `row` of the sequence. Rows before 0 are in the state.
const float* Row(const CausalConvArgs<float>& args, const StateSequence& sequence,
                 ConvChannels strip, int row) {
  if (row >= 0) return args.x + (int64_t{sequence.first_row} + row) * args.x_stride + strip.channel;
  if (sequence.from == kNoState) return kZeros;
  return args.state.data + sequence.from * args.state.stride +
         int64_t{args.width - 1 + row} * args.channels + strip.channel;
}

void ConvRow(const CausalConvArgs<float>& args, ConvChannels strip, const float* const* rows,
             float* out) {
  for (int i = 0; i < strip.width; i += kLanes) {
    const int n = MinInt(strip.width - i, kLanes);
    const int64_t at = strip.channel + i;
    F32 sum = args.bias == nullptr ? Zero() : LoadFirst(args.bias + at, n);
    for (int j = 0; j < args.width; ++j) {
      sum = Fma(LoadFirst(args.taps + int64_t{j} * args.channels + at, n),
                LoadFirst(rows[j] + i, n), sum);
    }
    StoreFirst(out + i, n, Silu(sum));
  }
}

void ConvStrip(const CausalConvArgs<float>& args, const StateSequence& sequence,
               ConvChannels strip) {
  // Stage 1: each row from those before it.
  const float* rows[kConvWidthMax];
  for (int row = 0; row < sequence.num_tokens; ++row) {
    for (int j = 0; j < args.width; ++j)
      rows[j] = Row(args, sequence, strip, row - args.width + 1 + j);
    ConvRow(args, strip, rows,
            args.out + (int64_t{sequence.first_row} + row) * args.channels + strip.channel);
  }
  // Stage 2: the last rows are the state. In ascending order, so that a row moved within a slot is
  // read before it is overwritten.
  for (int i = 0; i < args.width - 1; ++i) {
    const float* row = Row(args, sequence, strip, sequence.num_tokens - args.width + 1 + i);
    float* to = args.state.data + sequence.to * args.state.stride + int64_t{i} * args.channels +
                strip.channel;
    for (int lane = 0; lane < strip.width; lane += kLanes) {
      const int n = MinInt(strip.width - lane, kLanes);
      StoreFirst(to + lane, n, LoadFirst(row + lane, n));
    }
  }
}

void CausalConv(const CausalConvArgs<float>& args, int begin, int end) {
  for (int i = 0; i < args.batch.num_sequences; ++i) {
    if (args.batch.sequences[i].num_tokens == 0) continue;
    for (int channel = begin; channel < end; channel += kStrip)
      ConvStrip(args, args.batch.sequences[i], {channel, MinInt(end - channel, kStrip)});
  }
}

}  // namespace
}  // namespace diffserve::DS_ISA

namespace diffserve {

const CausalConvKernels& CausalConvKernels::DS_ISA() {
  static constexpr CausalConvKernels kKernels = {.run = DS_ISA::CausalConv};
  return kKernels;
}

}  // namespace diffserve
