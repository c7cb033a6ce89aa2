// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/linear_quantized_cuda.h"
#include "kernels/ops/weight_lanes.cuh"

namespace diffserve::cuda {
namespace {

constexpr int kWarps = 8;  // of a thread block
constexpr int kThreads = 32 * kWarps;

__device__ __forceinline__ float ReadY(const float* from) { return *from; }
__device__ __forceinline__ float ReadY(const BFloat16* from) { return BFloat16ToFloat(*from); }
__device__ __forceinline__ void WriteY(float value, float* to) { *to = value; }
__device__ __forceinline__ void WriteY(float value, BFloat16* to) { *to = FloatToBFloat16(value); }

template <typename Y>
__device__ __forceinline__ void Finish(const QuantizedProduct& call, int token, int row,
                                       float sum) {
  Y* y = static_cast<Y*>(call.y) + static_cast<int64_t>(token) * call.weight.out_features + row;
  if (call.weight.scale != nullptr) sum = MulRounded(sum, call.weight.scale[row]);
  if (call.bias != nullptr) sum += ReadY(static_cast<const Y*>(call.bias) + row);
  if (call.accumulate) sum += ReadY(y);
  WriteY(sum, y);
}

}  // namespace

// Grid: row tiles. A warp widens every kWarps-th group.
template <typename Lane>
__global__ void __launch_bounds__(kThreads)
    WidenWeightsKernel(QuantizedMatrix weight, int first, int num_rows, BFloat16* to) {
  using Tile = typename Lane::Tile;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int groups = (weight.in_features + kQuantGroup - 1) / kQuantGroup;
  const int row = static_cast<int>(blockIdx.x) * kTileRows + lane / 4;  // of `to`
  const std::byte* tiles = static_cast<const std::byte*>(weight.codes) +
                           (int64_t{first} / kTileRows + blockIdx.x) * groups * Tile::kBytes;
  for (int group = static_cast<int>(threadIdx.x) / 32; group < groups; group += kWarps) {
    Lane weights;
    weights.ReadStep(tiles + int64_t{group} * Tile::kBytes, lane / 4, lane % 4);
    if (row >= num_rows) continue;
    float scale;
    if constexpr (Lane::kScalesGroups) {
      scale = Lane::kUnit * weights.Scale();
    } else {
      scale = Lane::kUnit * weight.scale[first + row];
    }
    Words4 wide[2];  // eight neighbouring features each
#pragma unroll
    for (int i = 0; i < 4; ++i) weights.Widen(i, wide[0].word[i], wide[1].word[i]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t pair = wide[half].word[i];
        wide[half].word[i] = PackBFloat16(
            scale * BFloat16ToFloat(static_cast<BFloat16>(pair)),
            scale * BFloat16ToFloat(static_cast<BFloat16>(pair >> 16)));
      }
      const int feature = group * kQuantGroup + lane % 4 * 16 + half * 8;
      if (feature < weight.in_features) {
        *reinterpret_cast<Words4*>(to + static_cast<int64_t>(row) * weight.in_features +
                                   feature) = wide[half];
      }
    }
  }
}

// Grid: tokens. A thread codes eight features at a time.
__global__ void __launch_bounds__(kThreads)
    QuantizeToFp8Kernel(QuantizedProduct call, uint8_t* codes, float* scale) {
  __shared__ float largest_of[kWarps];
  const int thread = static_cast<int>(threadIdx.x), in_features = call.weight.in_features;
  const int padded = Fp8Padded(in_features);
  const BFloat16* x = call.x + blockIdx.x * call.x_stride;
  float largest = 0;
  for (int i = thread * kVecWide; i < in_features; i += kThreads * kVecWide) {
    float values[kVecWide];
    LoadRow<kVecWide>(x + i, values);
#pragma unroll
    for (int k = 0; k < kVecWide; ++k) largest = fmaxf(largest, fabsf(values[k]));
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
  if (thread % 32 == 0) largest_of[thread / 32] = largest;
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) largest = fmaxf(largest, largest_of[warp]);
  const float step = largest / kFp8E4M3Max;
  if (thread == 0) scale[blockIdx.x] = step;
  for (int i = thread * kVecWide; i < padded; i += kThreads * kVecWide) {
    float values[kVecWide] = {};
    if (i < in_features) LoadRow<kVecWide>(x + i, values);
    uint32_t words[2] = {};
#pragma unroll
    for (int k = 0; k < kVecWide; ++k) {
      const uint32_t code = step == 0 && values[k] == 0 ? 0 : FloatToFp8E4M3(values[k] / step);
      words[k / 4] |= code << k % 4 * 8;
    }
    *reinterpret_cast<uint2*>(codes + static_cast<int64_t>(blockIdx.x) * padded + i) = uint2{
        words[0], words[1]};
  }
}

namespace {

constexpr int kFinishedTokens = 4;  // of a thread, so that it asks for as many sums at once

}  // namespace

// Grid: kFinishedTokens tokens, slices of kThreads features.
template <typename Y>
__global__ void __launch_bounds__(kThreads)
    FinishSumsKernel(QuantizedProduct call, ProductSums from) {
  const int first_token = static_cast<int>(blockIdx.x) * kFinishedTokens;
  const int feature = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (feature >= from.num_features) return;
  float sums[kFinishedTokens];
#pragma unroll
  for (int i = 0; i < kFinishedTokens; ++i) {
    const int token = first_token + i;
    if (token < call.num_tokens)
      sums[i] = from.sums[static_cast<int64_t>(token) * from.stride + feature];
  }
#pragma unroll 4
  for (int part = 1; part < from.num_parts; ++part) {
#pragma unroll
    for (int i = 0; i < kFinishedTokens; ++i) {
      const int token = first_token + i;
      if (token >= call.num_tokens) continue;
      const int64_t row = int64_t{part} * call.num_tokens + token;
      sums[i] += from.sums[row * from.stride + feature];
    }
  }
#pragma unroll
  for (int i = 0; i < kFinishedTokens; ++i) {
    const int token = first_token + i;
    if (token >= call.num_tokens) continue;
    if (from.token_scale != nullptr) sums[i] = MulRounded(sums[i], from.token_scale[token]);
    Finish<Y>(call, token, from.first + feature, sums[i]);
  }
}

Status WidenWeights(const QuantizedMatrix& weight, int first, int num_rows, BFloat16* to,
                    const Stream& stream) {
  const LaunchShape shape = {dim3(static_cast<unsigned>((num_rows + kTileRows - 1) / kTileRows)),
                             dim3(kThreads)};
  return Launch("WidenWeights", shape, stream,
                weight.format == WeightFormat::kInt8 ? WidenWeightsKernel<Int8Lane>
                                                     : WidenWeightsKernel<Int4Lane>,
                weight, first, num_rows, to);
}

Status QuantizeToFp8(const QuantizedProduct& product, uint8_t* codes, float* scale,
                     const Stream& stream) {
  return Launch("QuantizeToFp8", {dim3(static_cast<unsigned>(product.num_tokens)), dim3(kThreads)},
                stream, QuantizeToFp8Kernel, product, codes, scale);
}

Status FinishSums(const QuantizedProduct& product, const ProductSums& sums, const Stream& stream) {
  const auto groups_of = [](int count, int size) {
    return static_cast<unsigned>((count + size - 1) / size);
  };
  const LaunchShape shape = {
      dim3(groups_of(product.num_tokens, kFinishedTokens), groups_of(sums.num_features, kThreads)),
      dim3(kThreads)};
  return Launch(
      "FinishSums", shape, stream,
      product.y_dtype == DType::kFloat32 ? FinishSumsKernel<float> : FinishSumsKernel<BFloat16>,
      product, sums);
}

}  // namespace diffserve::cuda
