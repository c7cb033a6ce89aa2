// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>

#include "kernels/base/cuda/launch.cuh"
#include "kernels/base/cuda/ptx.cuh"
#include "kernels/mamba/selective_scan.h"

namespace diffserve::cuda {
namespace {

constexpr int kScanThreads = 128;
constexpr int kLaneSets = 4;  // share a channel's states: 8 lanes of a warp each
constexpr int kScanChannels = kScanThreads / kLaneSets;  // per thread block
constexpr int kWarpChannels = 32 / kLaneSets;
constexpr int kRun = 32;  // tokens at a time

// log(1 + exp(v)); from 20 on v itself, since log(1 + exp(-v)) is less than half of its last bit.
__device__ __forceinline__ float Softplus(float v) {
  return fmaxf(v, 0.0f) + log1pf(expf(-fabsf(v)));
}

}  // namespace

// Grid: strips of kScanChannels channels, sequences. A thread has states kLaneSets * k + its set of
// one channel. kIsWhole: together these are all `states` states.
template <int kStates, bool kIsWhole>
__global__ void __launch_bounds__(kScanThreads)
    SelectiveScanKernel(const __grid_constant__ SelectiveScanArgs<BFloat16> args) {
  __shared__ float steps[kRun][kScanChannels];   // delta as an exponent of 2: delta * log2(e)
  __shared__ float inputs[kRun][kScanChannels];  // delta * x
  __shared__ float ys[kRun][kScanChannels];      // without skip
  __shared__ float bs[kRun][kLaneSets * kStates];
  __shared__ float cs[kRun][kLaneSets * kStates];
  const StateSequence sequence = args.batch.sequences[blockIdx.y];
  if (sequence.num_tokens == 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int first_channel = static_cast<int>(blockIdx.x) * kScanChannels;
  const int channels = min(kScanChannels, args.channels - first_channel);
  const int set = thread % 32 / kWarpChannels;
  const int channel = thread / 32 * kWarpChannels + thread % kWarpChannels;
  const int64_t first_state = int64_t{set} * args.channels + first_channel + channel;
  const int64_t states_apart = int64_t{kLaneSets} * args.channels;
  const auto has = [&](int k) {
    return channel < channels && (kIsWhole || kLaneSets * k + set < args.states);
  };
  float rate[kStates], s[kStates];
  const float* from = args.state.data + sequence.from * args.state.stride + first_state;
#pragma unroll
  for (int k = 0; k < kStates; ++k) {
    rate[k] = has(k) ? args.rates[first_state + k * states_apart] : 0.0f;
    s[k] = has(k) && sequence.from != kNoState ? from[k * states_apart] : 0.0f;
  }

  for (int begin = 0; begin < sequence.num_tokens; begin += kRun) {
    const int tokens = min(kRun, sequence.num_tokens - begin);
    const int64_t first_row = int64_t{sequence.first_row} + begin;
    // Stage 1: the inputs of the states for a run of tokens.
    for (int i = thread; i < tokens * kScanChannels; i += kScanThreads) {
      const int t = i / kScanChannels, at = i % kScanChannels;
      if (at >= channels) continue;
      const int64_t element = (first_row + t) * args.channels + first_channel + at;
      const float delta = Softplus(BFloat16ToFloat(args.dt[element]) +
                                   args.dt_bias[first_channel + at]);
      steps[t][at] = delta * 1.44269504f;
      inputs[t][at] = delta * BFloat16ToFloat(args.x[element]);
    }
    for (int i = thread; i < tokens * args.states; i += kScanThreads) {
      const int t = i / args.states, n = i % args.states;
      const int64_t element = (first_row + t) * args.bc_stride + n;
      bs[t][n] = BFloat16ToFloat(args.b[element]);
      cs[t][n] = BFloat16ToFloat(args.c[element]);
    }
    __syncthreads();

    // Stage 2: the states advance through the run.
    for (int t = 0; t < tokens; ++t) {
      const float step = channel < channels ? steps[t][channel] : 0.0f;
      const float input = channel < channels ? inputs[t][channel] : 0.0f;
      float y = 0.0f;
#pragma unroll
      for (int k = 0; k < kStates; ++k) {
        if (!kIsWhole && !has(k)) continue;
        s[k] = Exp2(step * rate[k]) * s[k] + input * bs[t][kLaneSets * k + set];
        y += s[k] * cs[t][kLaneSets * k + set];
      }
#pragma unroll
      for (int distance = 16; distance >= kWarpChannels; distance /= 2)
        y += __shfl_xor_sync(0xffffffffu, y, distance);
      if (set == 0) ys[t][channel] = y;
    }
    __syncthreads();

    // Stage 3: the outputs of the run. A barrier of the next run precedes its writes to `ys`.
    for (int i = thread; i < tokens * kScanChannels; i += kScanThreads) {
      const int t = i / kScanChannels, at = i % kScanChannels;
      if (at >= channels) continue;
      const int64_t row = first_row + t;
      const int64_t element = row * args.channels + first_channel + at;
      float y = ys[t][at] + args.skip[first_channel + at] * BFloat16ToFloat(args.x[element]);
      if (args.z != nullptr) {
        const float z = BFloat16ToFloat(args.z[row * args.z_stride + first_channel + at]);
        y *= z / (1.0f + expf(-z));
      }
      args.out[element] = FloatToBFloat16(y);
    }
  }
  float* to = args.state.data + sequence.to * args.state.stride + first_state;
#pragma unroll
  for (int k = 0; k < kStates; ++k) {
    if (has(k)) to[k * states_apart] = s[k];
  }
}

namespace {

struct ScanInstance {
  int states;  // maximum over all lanes
  bool is_whole;
  void (*kernel)(SelectiveScanArgs<BFloat16>);
};
template <int kStates, bool kIsWhole>
ScanInstance InstanceOf() {
  return {kLaneSets * kStates, kIsWhole, SelectiveScanKernel<kStates, kIsWhole>};
}
const ScanInstance kInstances[] = {InstanceOf<1, true>(),  InstanceOf<2, true>(),
                                   InstanceOf<4, true>(),  InstanceOf<8, true>(),
                                   InstanceOf<16, true>(), InstanceOf<32, true>(),
                                   InstanceOf<4, false>(), InstanceOf<32, false>()};

bool IsWithinContract(const SelectiveScanArgs<BFloat16>& args) {
  return args.states >= 1 && args.states <= kScanStatesMax && args.bc_stride >= args.states &&
         (args.z == nullptr || args.z_stride >= args.channels) &&
         args.state.stride >= args.StateFloats();
}

}  // namespace

Status SelectiveScan(const SelectiveScanArgs<BFloat16>& args, const Stream& stream) {
  if (!IsWithinContract(args))
    return Status(StatusCode::kInternal, "a scan of these shapes is not in its contract");
  if (args.batch.num_sequences == 0) return Status();
  const auto* instance = std::ranges::find_if(kInstances, [&](const ScanInstance& candidate) {
    return candidate.is_whole ? candidate.states == args.states : candidate.states >= args.states;
  });
  const int strips = (args.channels + kScanChannels - 1) / kScanChannels;
  return Launch(
      "SelectiveScan",
      {.grid = dim3(static_cast<unsigned>(strips), static_cast<unsigned>(args.batch.num_sequences)),
       .threads = dim3(kScanThreads)},
      stream, instance->kernel, args);
}

}  // namespace diffserve::cuda
