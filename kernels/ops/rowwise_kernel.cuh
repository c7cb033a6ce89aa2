// The device code of rowwise_cuda.h. It includes no CUDA header (nvcc brings its own declarations),
// so that the tests' CPU shim compiles the same text with a C++ compiler. One thread block a row
// (and, without a reduction, a slice of columns); kVec elements, 8 or 1, an access.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/ops/rowwise_cuda.h"

namespace diffserve::cuda {

constexpr int kRowThreads = 256;
constexpr int kRowWarps = kRowThreads / 32;

// Sixteen bytes in one access.
struct alignas(16) Words4 {
  uint32_t word[4];
};

__device__ inline float BFloat16Bits(uint32_t bits) { return std::bit_cast<float>(bits << 16); }

// As FloatToBFloat16 of dtype.h.
__device__ inline uint32_t RoundToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits >> 16) | 0x40u;
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

template <int kVec>
__device__ inline void LoadRow(const float* from, float (&to)[kVec]) {
  if constexpr (kVec == 8) {
    const Words4 low = *reinterpret_cast<const Words4*>(from),
                 high = *reinterpret_cast<const Words4*>(from + 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[i] = std::bit_cast<float>(low.word[i]);
      to[i + 4] = std::bit_cast<float>(high.word[i]);
    }
  } else {
    to[0] = from[0];
  }
}

template <int kVec>
__device__ inline void LoadRow(const uint16_t* from, float (&to)[kVec]) {
  if constexpr (kVec == 8) {
    const Words4 words = *reinterpret_cast<const Words4*>(from);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[2 * i] = BFloat16Bits(words.word[i] & 0xffffu);
      to[2 * i + 1] = BFloat16Bits(words.word[i] >> 16);
    }
  } else {
    to[0] = BFloat16Bits(from[0]);
  }
}

template <int kVec>
__device__ inline void StoreRow(const float (&from)[kVec], float* to) {
  if constexpr (kVec == 8) {
    Words4 low, high;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      low.word[i] = std::bit_cast<uint32_t>(from[i]);
      high.word[i] = std::bit_cast<uint32_t>(from[i + 4]);
    }
    *reinterpret_cast<Words4*>(to) = low;
    *reinterpret_cast<Words4*>(to + 4) = high;
  } else {
    to[0] = from[0];
  }
}

template <int kVec>
__device__ inline void StoreRow(const float (&from)[kVec], uint16_t* to) {
  if constexpr (kVec == 8) {
    Words4 words;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      words.word[i] = RoundToBFloat16(from[2 * i]) | RoundToBFloat16(from[2 * i + 1]) << 16;
    *reinterpret_cast<Words4*>(to) = words;
  } else {
    to[0] = static_cast<uint16_t>(RoundToBFloat16(from[0]));
  }
}

// Every thread gets the sum of all threads' values: a tree within each warp, then the warps in
// ascending order. Once a kernel, since the partial sums are not guarded against a second use.
template <int kCount>
__device__ inline void SumOverThreads(float (&value)[kCount]) {
  __shared__ float partial[kCount][kRowWarps];
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      value[n] += __shfl_xor_sync(0xffffffffu, value[n], distance);
    if (threadIdx.x % 32 == 0) partial[n][threadIdx.x / 32] = value[n];
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
    value[n] = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kRowWarps; ++warp) value[n] += partial[n][warp];
  }
}

// Grid: rows.
template <int kVec>
__global__ void __launch_bounds__(kRowThreads) RmsNormKernel(RmsNormArgs args) {
  const int64_t width = args.width;
  const int64_t row = args.source_rows == nullptr ? blockIdx.x : args.source_rows[blockIdx.x];
  float* residual = args.residual + row * width;
  const uint16_t* add = args.add == nullptr ? nullptr : args.add + row * width;
  uint16_t* out = args.out + blockIdx.x * width;

  float squares[1] = {0.0f};
  for (int64_t i = threadIdx.x * kVec; i < width; i += kRowThreads * kVec) {
    float x[kVec];
    LoadRow<kVec>(residual + i, x);
    if (add != nullptr) {
      float addend[kVec];
      LoadRow<kVec>(add + i, addend);
#pragma unroll
      for (int k = 0; k < kVec; ++k) x[k] += addend[k];
      StoreRow<kVec>(x, residual + i);
    }
#pragma unroll
    for (int k = 0; k < kVec; ++k) squares[0] += x[k] * x[k];
  }
  SumOverThreads(squares);
  const float factor = 1.0f / sqrtf(squares[0] / static_cast<float>(args.width) + args.eps);
  // Each thread reads back what it wrote itself.
  for (int64_t i = threadIdx.x * kVec; i < width; i += kRowThreads * kVec) {
    float x[kVec], weight[kVec];
    LoadRow<kVec>(residual + i, x);
    LoadRow<kVec>(args.weight + i, weight);
#pragma unroll
    for (int k = 0; k < kVec; ++k) x[k] = x[k] * factor * weight[k];
    StoreRow<kVec>(x, out + i);
  }
}

// Grid: rows, slices of kRowThreads * kVec columns.
template <int kVec>
__global__ void __launch_bounds__(kRowThreads) SiluMulKernel(SiluMulArgs args) {
  const int64_t width = args.width;
  const int64_t i = (static_cast<int64_t>(blockIdx.y) * kRowThreads + threadIdx.x) * kVec;
  if (i >= width) return;
  const uint16_t* gate = args.x + blockIdx.x * 2 * width + i;
  float z[kVec], up[kVec];
  LoadRow<kVec>(gate, z);
  LoadRow<kVec>(gate + width, up);
#pragma unroll
  for (int k = 0; k < kVec; ++k) z[k] = z[k] / (1.0f + expf(-z[k])) * up[k];
  StoreRow<kVec>(z, args.out + blockIdx.x * width + i);
}

// Grid: rows.
template <int kVec>
__global__ void __launch_bounds__(kRowThreads) PolyNormMulKernel(PolyNormMulArgs args) {
  const int64_t width = args.width;
  const uint16_t* gate = args.x + blockIdx.x * 2 * width;
  const uint16_t* up = gate + width;
  uint16_t* out = args.out + blockIdx.x * width;

  float powers[3] = {0.0f, 0.0f, 0.0f};  // sums of z^6, z^4, z^2
  for (int64_t i = threadIdx.x * kVec; i < width; i += kRowThreads * kVec) {
    float z[kVec];
    LoadRow<kVec>(gate + i, z);
#pragma unroll
    for (int k = 0; k < kVec; ++k) {
      const float square = z[k] * z[k];
      const float cube = square * z[k];
      powers[0] += cube * cube;
      powers[1] += square * square;
      powers[2] += square;
    }
  }
  SumOverThreads(powers);
  float factor[3];
#pragma unroll
  for (int term = 0; term < 3; ++term) {
    factor[term] = args.weight[term] /
                   sqrtf(powers[term] / static_cast<float>(args.width) + args.eps);
  }
  for (int64_t i = threadIdx.x * kVec; i < width; i += kRowThreads * kVec) {
    float z[kVec], other[kVec];
    LoadRow<kVec>(gate + i, z);
    LoadRow<kVec>(up + i, other);
#pragma unroll
    for (int k = 0; k < kVec; ++k) {
      z[k] = (((factor[0] * z[k] + factor[1]) * z[k] + factor[2]) * z[k] + args.bias) * other[k];
    }
    StoreRow<kVec>(z, out + i);
  }
}

// Grid: slices of kRowThreads * kVec elements.
template <int kVec>
__global__ void __launch_bounds__(kRowThreads) SigmoidKernel(SigmoidArgs args) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) * kVec;
  if (i >= args.count) return;
  float x[kVec];
  LoadRow<kVec>(args.x + i, x);
#pragma unroll
  for (int k = 0; k < kVec; ++k) x[k] = 1.0f / (1.0f + expf(-x[k]));
  StoreRow<kVec>(x, args.x + i);
}

// Grid: rows, slices of kRowThreads * kVec columns.
template <typename Element, int kVec>
__global__ void __launch_bounds__(kRowThreads) EmbeddingLookupKernel(EmbeddingLookupArgs args) {
  const int64_t width = args.width;
  const int64_t i = (static_cast<int64_t>(blockIdx.y) * kRowThreads + threadIdx.x) * kVec;
  if (i >= width) return;
  int64_t token = args.tokens[blockIdx.x];
  if (token < 0) token = args.drawn[(-1 - token) * args.drawn_stride];
  float x[kVec];
  LoadRow<kVec>(static_cast<const Element*>(args.table) + token * width + i, x);
  StoreRow<kVec>(x, args.out + blockIdx.x * width + i);
}

}  // namespace diffserve::cuda
