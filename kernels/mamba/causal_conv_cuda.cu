// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/cuda/launch.cuh"
#include "kernels/mamba/causal_conv.h"

namespace diffserve::cuda {
namespace {

constexpr int kConvThreads = 128;  // one channel each
constexpr int kConvRun = 16;       // tokens per thread block
constexpr int kConvRunsMax = 256;  // maximum number of thread blocks that share a sequence's tokens

// The channel of row `row` of the sequence. Rows before 0 are in the state.
__device__ __forceinline__ float RowOf(const CausalConvArgs<BFloat16>& args,
                                       const StateSequence& sequence, int64_t channel, int row) {
  if (row >= 0)
    return BFloat16ToFloat(args.x[(int64_t{sequence.first_row} + row) * args.x_stride + channel]);
  if (sequence.from == kNoState) return 0.0f;
  return args.state.data[sequence.from * args.state.stride +
                         int64_t{args.width - 1 + row} * args.channels + channel];
}

}  // namespace

// Grid: strips of kConvThreads channels, runs of tokens, sequences. Only the first run's thread
// blocks touch the state.
template <int kWidth>
__global__ void __launch_bounds__(kConvThreads)
    CausalConvKernel(const __grid_constant__ CausalConvArgs<BFloat16> args) {
  const StateSequence sequence = args.batch.sequences[blockIdx.z];
  const int64_t channel = int64_t{blockIdx.x} * kConvThreads + threadIdx.x;
  const int runs = (sequence.num_tokens + kConvRun - 1) / kConvRun;
  if (channel >= args.channels || static_cast<int>(blockIdx.y) >= runs) return;
  // Stage 1: each row from those before it.
  float tap[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) tap[j] = args.taps[int64_t{j} * args.channels + channel];
  const float bias = args.bias == nullptr ? 0.0f : args.bias[channel];
  float row_of[kWidth] = {};  // the last is this row's channel; the rows before it precede it
  for (int run = static_cast<int>(blockIdx.y); run < runs; run += static_cast<int>(gridDim.y)) {
    const int begin = run * kConvRun;
#pragma unroll
    for (int j = 0; j + 1 < kWidth; ++j)
      row_of[j + 1] = RowOf(args, sequence, channel, begin - kWidth + 1 + j);
    const int end = min(begin + kConvRun, sequence.num_tokens);
    for (int row = begin; row < end; ++row) {
#pragma unroll
      for (int j = 0; j + 1 < kWidth; ++j) row_of[j] = row_of[j + 1];
      row_of[kWidth - 1] = RowOf(args, sequence, channel, row);
      float sum = bias;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum += tap[j] * row_of[j];
      args.out[(int64_t{sequence.first_row} + row) * args.channels + channel] = FloatToBFloat16(
          sum / (1.0f + expf(-sum)));
    }
  }
  // Stage 2: the last rows are the state.
  if (blockIdx.y != 0) return;
  float* to = args.state.data + sequence.to * args.state.stride + channel;
#pragma unroll
  for (int i = 0; i + 1 < kWidth; ++i) {
    // Several runs only occur with more rows than a state has.
    const int row = sequence.num_tokens - kWidth + 1 + i;
    to[int64_t{i} * args.channels] = runs == 1 ? row_of[i + 1]
                                               : RowOf(args, sequence, channel, row);
  }
}

namespace {

void (*const kKernels[])(CausalConvArgs<BFloat16>) = {
    CausalConvKernel<2>, CausalConvKernel<3>, CausalConvKernel<4>, CausalConvKernel<5>,
    CausalConvKernel<6>, CausalConvKernel<7>, CausalConvKernel<8>};

}  // namespace

Status CausalConv(const CausalConvArgs<BFloat16>& args, const Stream& stream) {
  if (args.width < kConvWidthMin || args.width > kConvWidthMax || args.x_stride < args.channels ||
      args.state.stride < args.StateFloats())
    return Status(StatusCode::kInternal, "a convolution of these shapes is not in its contract");
  if (args.batch.num_tokens == 0) return Status();
  const int strips = (args.channels + kConvThreads - 1) / kConvThreads;
  const int most = args.batch.num_tokens_max > 0 ? args.batch.num_tokens_max
                                                 : args.batch.num_tokens;
  const int runs = std::min((most + kConvRun - 1) / kConvRun, kConvRunsMax);
  return Launch("CausalConv",
                {.grid = dim3(static_cast<unsigned>(strips), static_cast<unsigned>(runs),
                              static_cast<unsigned>(args.batch.num_sequences)),
                 .threads = dim3(kConvThreads)},
                stream, kKernels[args.width - kConvWidthMin], args);
}

}  // namespace diffserve::cuda
