// SPDX-License-Identifier: Apache-2.0
// A warp holds the weights of 16 output features as the A operand of mma.m16n8k16 and eight tokens
// as B, so a product with few tokens wastes little. Eight warps of a block compute the same
// outputs, each over its part of in_features.
#include "kernels/base/cuda/ptx.cuh"
#include "kernels/ops/linear_quantized_cuda.h"
#include "kernels/ops/row_access.cuh"
#include "kernels/ops/weight_tiles.h"

namespace diffserve::cuda {
namespace {

constexpr int kParts = 8;  // of in_features: the warps of a block
constexpr int kThreads = 32 * kParts;
constexpr int kSteps = kQuantGroup / 16;  // of mma per group
constexpr int kRingTiles = 8;             // of each warp in shared memory

__device__ __forceinline__ Words4 Load(const std::byte* from) {
  return *reinterpret_cast<const Words4*>(from);
}

}  // namespace

// What a lane reads of a tile, and the A operands in it.
struct Int8Lane {
  using Tile = Int8Tile;
  static constexpr bool kScalesGroups = false;
  Words4 words[2];

  __device__ __forceinline__ void Read(const std::byte* tile, int lane) {
    words[0] = Load(tile + lane * 16);
    words[1] = Load(tile + Tile::kHalfBytes + lane * 16);
  }
  __device__ __forceinline__ void Fragment(int step, uint32_t (&a)[4]) const {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const uint32_t codes = words[step / 2].word[step % 2 * 2 + pair];
      a[2 * pair] = Widen(codes);
      a[2 * pair + 1] = Widen(codes >> 8);
    }
  }
  // Bytes 0 and 2. Builds 128 + the low 7 bits, and subtracts 128, or 256 with bit 7.
  __device__ __forceinline__ static uint32_t Widen(uint32_t codes) {
    return FmaBFloat16((codes & 0x007f007fu) | 0x43004300u, 0x3f803f80u,
                       (codes & 0x00800080u) ^ 0xc300c300u);
  }
};

struct Int4Lane {
  using Tile = Int4Tile;
  static constexpr bool kScalesGroups = true;
  static constexpr float kCodeUnit = 64;  // a fragment has code / kCodeUnit
  Words4 words;
  uint32_t scales;  // of rows r and r + 8

  __device__ __forceinline__ void Read(const std::byte* tile, int lane) {
    words = Load(tile + lane * 16);
    scales = *reinterpret_cast<const uint32_t*>(tile + Tile::kScalesAt + lane / 4 * 4);
  }
  // In the bits of a bfloat16 below 256, a whole number n is n 2^-133. So one fused multiply-add
  // computes (code - 8) / 64 exactly.
  __device__ __forceinline__ void Fragment(int step, uint32_t (&a)[4]) const {
    constexpr uint32_t kMinusZero = 0xbe00be00u;  // -8 / 64
    const uint32_t codes = words.word[step];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const uint32_t bytes = codes >> 8 * row;
      a[row] = FmaBFloat16(bytes & 0x000f000fu, 0x7f007f00u, kMinusZero);      // 2^127
      a[2 + row] = FmaBFloat16(bytes & 0x00f000f0u, 0x7d007d00u, kMinusZero);  // 2^123
    }
  }
  __device__ __forceinline__ float Scale(int row) const {
    return kCodeUnit * WidenFloat16(static_cast<uint16_t>(scales >> 16 * row));
  }
};

namespace {

// Eight tokens' activations of a group, zeros outside: the B operands of the steps.
struct ActivationLane {
  Words4 words[2];

  __device__ __forceinline__ void Read(const QuantizedProduct& call, int first_token, int group,
                                       int lane) {
    const int64_t token = first_token + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int feature = group * kQuantGroup + lane % 4 * 16 + half * 8;
      words[half] = {};
      if (token < call.num_tokens && feature < call.weight.in_features) {
        words[half] = *reinterpret_cast<const Words4*>(call.x + token * call.x_stride + feature);
      }
    }
  }
  __device__ __forceinline__ uint32_t B(int step, int pair) const {
    return words[step / 2].word[step % 2 * 2 + pair];
  }
};

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

// sums[n] += weights x[n]
template <typename Lane, int kColumns>
__device__ __forceinline__ void MultiplyTile(const Lane& weights,
                                             const ActivationLane (&x)[kColumns],
                                             float (&sums)[kColumns][4]) {
  uint32_t a[kSteps][4];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) weights.Fragment(step, a[step]);
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    float group[4] = {};
    float(&to)[4] = Lane::kScalesGroups ? group : sums[n];
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      MmaBFloat16(to, a[step], x[n].B(step, 0), x[n].B(step, 1));
    if constexpr (Lane::kScalesGroups) {
#pragma unroll
      for (int c = 0; c < 4; ++c) sums[n][c] = fmaf(group[c], weights.Scale(c / 2), sums[n][c]);
    }
  }
}

// A warp's tiles on their way from global memory: kTiles neighbouring row tiles of a group per
// stage.
template <typename Tile, int kTiles>
struct TileRing {
  static constexpr int kStages = kRingTiles / kTiles;
  static constexpr int kBytes = kRingTiles * Tile::kBytes;
  std::byte* shared;       // kBytes
  const std::byte* tiles;  // the first group's
  int64_t tile_row_bytes;
  int lane;

  __device__ __forceinline__ const std::byte* At(int stage, int i) const {
    return shared + (stage * kTiles + i) * Tile::kBytes;
  }
  __device__ __forceinline__ void Fetch(int group, int stage) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const std::byte* from = tiles + i * tile_row_bytes + int64_t{group} * Tile::kBytes;
      for (int at = lane * 16; at < Tile::kBytes; at += 32 * 16)
        CpAsync16(SharedAddress(At(stage, i) + at), from + at);
    }
  }
};

}  // namespace

// Grid: kTiles row tiles, kTokens tokens.
template <typename Lane, typename Y, int kTokens, int kTiles>
__global__ void __launch_bounds__(kThreads) LinearQuantizedKernel(QuantizedProduct call) {
  using Ring = TileRing<typename Lane::Tile, kTiles>;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first_token = static_cast<int>(blockIdx.y) * kTokens;
  const int groups = (call.weight.in_features + kQuantGroup - 1) / kQuantGroup;
  const int64_t tile_row_bytes = int64_t{groups} * Lane::Tile::kBytes;
  const Ring ring = {DynamicShared() + warp * Ring::kBytes,
                     static_cast<const std::byte*>(call.weight.codes) +
                         int64_t{blockIdx.x} * kTiles * tile_row_bytes,
                     tile_row_bytes, lane};
  // The warp's part of each sum.
  float sums[kTiles][kTokens / 8][4] = {};
  const int begin = groups * warp / kParts, end = groups * (warp + 1) / kParts;
#pragma unroll
  for (int i = 0; i < Ring::kStages - 1; ++i) {
    if (begin + i < end) ring.Fetch(begin + i, i);
    CpAsyncCommit();
  }
  for (int group = begin; group < end; ++group) {
    CpAsyncWait<Ring::kStages - 2>();
    __syncwarp();
    const int next = group + Ring::kStages - 1;
    if (next < end) ring.Fetch(next, (next - begin) % Ring::kStages);
    CpAsyncCommit();
    ActivationLane x[kTokens / 8];
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) x[n].Read(call, first_token + 8 * n, group, lane);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      Lane weights;
      weights.Read(ring.At((group - begin) % Ring::kStages, i), lane);
      MultiplyTile(weights, x, sums[i]);
    }
  }
  // The parts in ascending order, a tile at a time.
  using Parts = float[kParts][kTokens][kTileRows + 1];
  static_assert(sizeof(Parts) <= kParts * Ring::kBytes);
  Parts& parts = *reinterpret_cast<Parts*>(DynamicShared());
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c)
        parts[warp][8 * n + lane % 4 * 2 + c % 2][lane / 4 + c / 2 * 8] = sums[i][n][c];
    }
    __syncthreads();
    for (int at = static_cast<int>(threadIdx.x); at < kTokens * kTileRows; at += kThreads) {
      const int token = at / kTileRows, row = at % kTileRows;
      float sum = 0;
#pragma unroll
      for (int part = 0; part < kParts; ++part) sum += parts[part][token][row];
      const int out = (static_cast<int>(blockIdx.x) * kTiles + i) * kTileRows + row;
      if (first_token + token < call.num_tokens && out < call.weight.out_features)
        Finish<Y>(call, first_token + token, out, sum);
    }
  }
}

namespace {

template <typename Lane, typename Y>
Status Run(const QuantizedProduct& product, const Stream& stream) {
  const auto run = [&](auto* kernel, int tokens, int tiles) {
    const int64_t row_tiles = NumRowTiles(product.weight.out_features);
    const LaunchShape shape = {
        dim3(static_cast<unsigned>(row_tiles / tiles),
             static_cast<unsigned>((product.num_tokens + tokens - 1) / tokens)),
        dim3(kThreads), size_t{kParts} * kRingTiles * Lane::Tile::kBytes};
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared_bytes));
    if (error != cudaSuccess) return ToStatus(error, "shared memory of LinearQuantized");
    return Launch("LinearQuantized", shape, stream, kernel, product);
  };
  if (product.num_tokens <= 8) return run(LinearQuantizedKernel<Lane, Y, 8, 2>, 8, 2);
  return run(LinearQuantizedKernel<Lane, Y, 32, 4>, 32, 4);
}

}  // namespace

// Grid: row tiles. A warp widens every kParts-th group.
template <typename Lane>
__global__ void __launch_bounds__(kThreads)
    WidenWeightsKernel(QuantizedMatrix weight, int first, int num_rows, BFloat16* to) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int groups = (weight.in_features + kQuantGroup - 1) / kQuantGroup;
  const int first_row = static_cast<int>(blockIdx.x) * kTileRows + lane / 4;  // of `to`
  const std::byte* tiles = static_cast<const std::byte*>(weight.codes) +
                           (int64_t{first} / kTileRows + blockIdx.x) * groups * Lane::Tile::kBytes;
  for (int group = static_cast<int>(threadIdx.x) / 32; group < groups; group += kParts) {
    Lane weights;
    weights.Read(tiles + int64_t{group} * Lane::Tile::kBytes, lane);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first_row + 8 * i;
      if (row >= num_rows) continue;
      float scale;
      if constexpr (Lane::kScalesGroups) {
        scale = weights.Scale(i);
      } else {
        scale = weight.scale[first + row];
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Words4 wide;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          uint32_t a[4];
          weights.Fragment(half * 2 + j / 2, a);
          const uint32_t pair = a[j % 2 * 2 + i];
          wide.word[j] = PackBFloat16(scale * BFloat16ToFloat(static_cast<BFloat16>(pair)),
                                      scale * BFloat16ToFloat(static_cast<BFloat16>(pair >> 16)));
        }
        const int feature = group * kQuantGroup + lane % 4 * 16 + half * 8;
        if (feature < weight.in_features) {
          *reinterpret_cast<Words4*>(to + static_cast<int64_t>(row) * weight.in_features +
                                     feature) = wide;
        }
      }
    }
  }
}

// Grid: tokens. A thread codes eight features at a time.
__global__ void __launch_bounds__(kThreads)
    QuantizeToFp8Kernel(QuantizedProduct call, uint8_t* codes, float* scale) {
  __shared__ float largest_of[kParts];
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
  for (int warp = 0; warp < kParts; ++warp) largest = fmaxf(largest, largest_of[warp]);
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
#pragma unroll
  for (int i = 0; i < kFinishedTokens; ++i) {
    const int token = first_token + i;
    if (token >= call.num_tokens) continue;
    if (from.token_scale != nullptr) sums[i] = MulRounded(sums[i], from.token_scale[token]);
    Finish<Y>(call, token, from.first + feature, sums[i]);
  }
}

Status LinearQuantized(const QuantizedProduct& product, const Stream& stream) {
  if (product.num_tokens == 0) return Status();
  const bool is_float32 = product.y_dtype == DType::kFloat32;
  if (product.weight.format == WeightFormat::kInt8) {
    return is_float32 ? Run<Int8Lane, float>(product, stream)
                      : Run<Int8Lane, BFloat16>(product, stream);
  }
  return is_float32 ? Run<Int4Lane, float>(product, stream)
                    : Run<Int4Lane, BFloat16>(product, stream);
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
