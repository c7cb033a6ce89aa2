// SPDX-License-Identifier: Apache-2.0
// Channels are in lanes, so no operation crosses lanes, and a channel's bits do not depend on the
// number of lanes.
#include "kernels/mamba/activation_lanes.h"
#include "kernels/mamba/mamba_kernel.h"

namespace diffserve::DS_ISA {
namespace {

constexpr int kStrip = 64;  // channels at a time, in whole vectors
constexpr int kRun = 16;    // tokens at a time
// States at a time, with their rates in registers too.
constexpr int kStates = kLanes == 16 ? 4 : 2;

// The inputs of a strip's states for a run of tokens, small enough to stay in the nearest cache.
// Lanes beyond the strip's width hold values that are never stored.
struct ScanRun {
  int64_t first_row;
  int num_tokens;
  alignas(64) float step[kRun][kStrip];   // delta as an exponent of 2: delta * log2(e)
  alignas(64) float input[kRun][kStrip];  // delta * x
  alignas(64) float y[kRun][kStrip];
};

struct ScanChannels {
  int64_t channel;  // the first channel
  int width;
};

void BeginRun(const SelectiveScanArgs<float>& args, ScanChannels strip, ScanRun& run) {
  for (int t = 0; t < run.num_tokens; ++t) {
    const int64_t at = (run.first_row + t) * args.channels + strip.channel;
    for (int i = 0; i < strip.width; i += kLanes) {
      const int n = MinInt(strip.width - i, kLanes);
      const F32 bias = LoadFirst(args.dt_bias + strip.channel + i, n);
      const F32 delta = Softplus(Add(LoadFirst(args.dt + at + i, n), bias));
      const F32 x = LoadFirst(args.x + at + i, n);
      Store(run.step[t] + i, Mul(delta, Set1(1.44269504f)));
      Store(run.input[t] + i, Mul(delta, x));
      Store(run.y[t] + i, Mul(LoadFirst(args.skip + strip.channel + i, n), x));
    }
  }
}

// Updates states [state, state + kCount) of the strip's vector that begins at lane `lane`. `from`
// and `to` point into slots, at the strip's first channel; from == nullptr: zeros.
template <int kCount>
[[gnu::always_inline]] inline void AdvanceStates(const SelectiveScanArgs<float>& args,
                                                 ScanChannels strip, ScanRun& run, int lane,
                                                 int state, const float* from, float* to) {
  const int n = MinInt(strip.width - lane, kLanes);
  F32 rate[kCount], s[kCount];
  for (int k = 0; k < kCount; ++k) {
    const int64_t at = int64_t{state + k} * args.channels + lane;
    rate[k] = LoadFirst(args.rates + strip.channel + at, n);
    s[k] = from == nullptr ? Zero() : LoadFirst(from + at, n);
  }
  const float* b = args.b + run.first_row * args.bc_stride + state;
  const float* c = args.c + run.first_row * args.bc_stride + state;
  for (int t = 0; t < run.num_tokens; ++t, b += args.bc_stride, c += args.bc_stride) {
    const F32 step = Load(run.step[t] + lane);
    const F32 input = Load(run.input[t] + lane);
    F32 y = Load(run.y[t] + lane);
    for (int k = 0; k < kCount; ++k) {
      s[k] = FmaRoundedOnce(Decay(Mul(step, rate[k])), s[k], Mul(input, Set1(b[k])));
      y = FmaRoundedOnce(s[k], Set1(c[k]), y);
    }
    Store(run.y[t] + lane, y);
  }
  for (int k = 0; k < kCount; ++k)
    StoreFirst(to + int64_t{state + k} * args.channels + lane, n, s[k]);
}

void EndRun(const SelectiveScanArgs<float>& args, ScanChannels strip, const ScanRun& run) {
  for (int t = 0; t < run.num_tokens; ++t) {
    const int64_t row = run.first_row + t;
    float* out = args.out + row * args.channels + strip.channel;
    for (int i = 0; i < strip.width; i += kLanes) {
      const int n = MinInt(strip.width - i, kLanes);
      F32 y = Load(run.y[t] + i);
      if (args.z != nullptr)
        y = Mul(y, Silu(LoadFirst(args.z + row * args.z_stride + strip.channel + i, n)));
      StoreFirst(out + i, n, y);
    }
  }
}

void ScanStrip(const SelectiveScanArgs<float>& args, const StateSequence& sequence,
               ScanChannels strip) {
  ScanRun run;
  float* to = args.state.data + sequence.to * args.state.stride + strip.channel;
  const float* from = sequence.from == kNoState
                          ? nullptr
                          : args.state.data + sequence.from * args.state.stride + strip.channel;
  for (int begin = 0; begin < sequence.num_tokens; begin += kRun) {
    run.first_row = int64_t{sequence.first_row} + begin;
    run.num_tokens = MinInt(sequence.num_tokens - begin, kRun);
    // Stage 1: the inputs of the states for a run of tokens.
    BeginRun(args, strip, run);
    // Stage 2: the states advance through the run.
    for (int lane = 0; lane < strip.width; lane += kLanes) {
      int state = 0;
      for (; state + kStates <= args.states; state += kStates)
        AdvanceStates<kStates>(args, strip, run, lane, state, from, to);
      for (; state < args.states; ++state)
        AdvanceStates<1>(args, strip, run, lane, state, from, to);
    }
    from = to;
    // Stage 3: the outputs of the run.
    EndRun(args, strip, run);
  }
}

void SelectiveScan(const SelectiveScanArgs<float>& args, int begin, int end) {
  for (int i = 0; i < args.batch.num_sequences; ++i) {
    for (int channel = begin; channel < end; channel += kStrip)
      ScanStrip(args, args.batch.sequences[i], {channel, MinInt(end - channel, kStrip)});
  }
}

}  // namespace
}  // namespace diffserve::DS_ISA

namespace diffserve {

const SelectiveScanKernels& SelectiveScanKernels::DS_ISA() {
  static constexpr SelectiveScanKernels kKernels = {.run = DS_ISA::SelectiveScan};
  return kKernels;
}

}  // namespace diffserve
