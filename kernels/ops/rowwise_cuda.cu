// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/poly_norm.cuh"
#include "kernels/ops/row_access.cuh"
#include "kernels/ops/rowwise.h"

namespace diffserve::cuda {

constexpr int kRowWarps = kRowThreads / 32;

// Every thread gets the sum of all threads' values: a tree within each warp, then the warps in
// ascending order. A kernel needs a __syncthreads() before its second call, which overwrites the
// first call's partial sums.
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

// kVecWide elements as they lie in memory, so that held ones take few registers.
template <typename T>
struct RowWords {
  Words4 part[sizeof(T) * kVecWide / sizeof(Words4)];
};
__device__ inline void Widen(const RowWords<float>& from, float (&to)[kVecWide]) {
#pragma unroll
  for (int i = 0; i < kVecWide; ++i)
    to[i] = __builtin_bit_cast(float, from.part[i / 4].word[i % 4]);
}
__device__ inline void Widen(const RowWords<BFloat16>& from, float (&to)[kVecWide]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = BFloat16ToFloat(static_cast<BFloat16>(from.part[0].word[i]));
    to[2 * i + 1] = BFloat16ToFloat(static_cast<BFloat16>(from.part[0].word[i] >> 16));
  }
}

// A thread's parts of a row that a kernel goes through more than once: kVec elements every
// kRowThreads * kVec. kHeld > 0: the row has at most that many, all of which are asked for at once
// and stay in registers. 0: each is read when it is wanted.
template <typename T, int kVec, int kHeld>
class Row {
 public:
  __device__ Row(const T* data, int64_t width) : data_(data) {
#pragma unroll
    for (int part = 0; part < kHeld; ++part) {
      const int64_t i = (int64_t{part} * kRowThreads + threadIdx.x) * kVec;
      if (i < width) held_[part] = *reinterpret_cast<const RowWords<T>*>(data + i);
    }
  }
  // `part` begins at element `i`.
  __device__ void Get(int64_t i, int part, float (&to)[kVec]) const {
    if constexpr (kHeld > 0) {
      Widen(held_[part], to);
    } else {
      LoadRow<kVec>(data_ + i, to);
    }
  }

 private:
  const T* data_;
  RowWords<T> held_[kHeld > 0 ? kHeld : 1];
};

// Calls body(i, part) for the thread's parts in ascending order.
template <int kVec, int kHeld, typename Body>
__device__ inline void ForEachPart(int64_t width, const Body& body) {
  if constexpr (kHeld > 0) {
#pragma unroll
    for (int part = 0; part < kHeld; ++part) {
      const int64_t i = (int64_t{part} * kRowThreads + threadIdx.x) * kVec;
      if (i < width) body(i, part);
    }
  } else {
    for (int64_t i = threadIdx.x * kVec; i < width; i += kRowThreads * kVec) body(i, 0);
  }
}

// Grid: tokens.
template <int kVec, int kHeld>
__global__ void __launch_bounds__(kRowThreads) RmsNormKernel(RmsNormArgs<BFloat16> args) {
  const int64_t width = args.width;
  const int64_t index = args.indices == nullptr ? blockIdx.x : args.indices[blockIdx.x];
  const Row<float, kVec, kHeld> x(args.x + index * width, width);
  const Row<float, kVec, kHeld> weights(args.weight, width);
  BFloat16* out = args.out + blockIdx.x * width;
  // Stage 1: the factor that brings the mean square to 1.
  float squares[1] = {0.0f};
  ForEachPart<kVec, kHeld>(width, [&](int64_t i, int part) {
    float value[kVec];
    x.Get(i, part, value);
#pragma unroll
    for (int k = 0; k < kVec; ++k) squares[0] += value[k] * value[k];
  });
  SumOverThreads(squares);
  const float factor = 1.0f / sqrtf(squares[0] / static_cast<float>(args.width) + args.eps);
  // Stage 2: scaling by the factor and the weight.
  ForEachPart<kVec, kHeld>(width, [&](int64_t i, int part) {
    float value[kVec], weight[kVec];
    x.Get(i, part, value);
    weights.Get(i, part, weight);
#pragma unroll
    for (int k = 0; k < kVec; ++k) value[k] = value[k] * factor * weight[k];
    StoreRow<kVec>(value, out + i);
  });
}

// Grid: tokens.
template <int kVec, int kHeld>
__global__ void __launch_bounds__(kRowThreads) LayerNormKernel(LayerNormArgs<BFloat16> args) {
  const int64_t width = args.width;
  const int64_t index = args.indices == nullptr ? blockIdx.x : args.indices[blockIdx.x];
  const Row<float, kVec, kHeld> x(args.x + index * width, width);
  const Row<float, kVec, kHeld> weights(args.weight, width), biases(args.bias, width);
  BFloat16* out = args.out + blockIdx.x * width;
  // Stage 1: the mean.
  float sum[1] = {0.0f};
  ForEachPart<kVec, kHeld>(width, [&](int64_t i, int part) {
    float value[kVec];
    x.Get(i, part, value);
#pragma unroll
    for (int k = 0; k < kVec; ++k) sum[0] += value[k];
  });
  SumOverThreads(sum);
  const float mean = sum[0] / static_cast<float>(args.width);
  // Stage 2: the factor that brings the variance to 1.
  float squares[1] = {0.0f};
  ForEachPart<kVec, kHeld>(width, [&](int64_t i, int part) {
    float value[kVec];
    x.Get(i, part, value);
#pragma unroll
    for (int k = 0; k < kVec; ++k) squares[0] += (value[k] - mean) * (value[k] - mean);
  });
  __syncthreads();
  SumOverThreads(squares);
  const float factor = 1.0f / sqrtf(squares[0] / static_cast<float>(args.width) + args.eps);
  // Stage 3: scaling by the factor and the weight, and the bias.
  ForEachPart<kVec, kHeld>(width, [&](int64_t i, int part) {
    float value[kVec], weight[kVec], bias[kVec];
    x.Get(i, part, value);
    weights.Get(i, part, weight);
    biases.Get(i, part, bias);
#pragma unroll
    for (int k = 0; k < kVec; ++k) value[k] = (value[k] - mean) * factor * weight[k] + bias[k];
    StoreRow<kVec>(value, out + i);
  });
}

// Grid: tokens, slices of kRowThreads * kVec columns.
template <int kVec>
__global__ void __launch_bounds__(kRowThreads) SiluMulKernel(SiluMulArgs<BFloat16> args) {
  const int64_t width = args.width;
  const int64_t i = (static_cast<int64_t>(blockIdx.y) * kRowThreads + threadIdx.x) * kVec;
  if (i >= width) return;
  const BFloat16* gate = args.x + blockIdx.x * 2 * width + i;
  float z[kVec], up[kVec];
  LoadRow<kVec>(gate, z);
  LoadRow<kVec>(gate + width, up);
#pragma unroll
  for (int k = 0; k < kVec; ++k) z[k] = z[k] / (1.0f + expf(-z[k])) * up[k];
  StoreRow<kVec>(z, args.out + blockIdx.x * width + i);
}

// Grid: tokens.
template <int kVec, int kHeld>
__global__ void __launch_bounds__(kRowThreads) PolyNormMulKernel(PolyNormMulArgs<BFloat16> args) {
  const int64_t width = args.width;
  const BFloat16* gate = args.x + blockIdx.x * 2 * width;
  const Row<BFloat16, kVec, kHeld> gates(gate, width), ups(gate + width, width);
  BFloat16* out = args.out + blockIdx.x * width;
  // Stage 1: the coefficients of the polynomial.
  float powers[3] = {0.0f, 0.0f, 0.0f};  // sums of z^6, z^4, z^2
  ForEachPart<kVec, kHeld>(width, [&](int64_t i, int part) {
    float z[kVec];
    gates.Get(i, part, z);
#pragma unroll
    for (int k = 0; k < kVec; ++k) AddPowers(z[k], powers);
  });
  SumOverThreads(powers);
  float factor[3];
#pragma unroll
  for (int term = 0; term < 3; ++term)
    factor[term] = PolyNormFactor(args.weight[term], powers[term], args.width, args.eps);
  // Stage 2: the polynomial of the gate times up.
  ForEachPart<kVec, kHeld>(width, [&](int64_t i, int part) {
    float z[kVec], up[kVec];
    gates.Get(i, part, z);
    ups.Get(i, part, up);
#pragma unroll
    for (int k = 0; k < kVec; ++k) z[k] = PolyNormTimesUp(factor, args.bias, z[k], up[k]);
    StoreRow<kVec>(z, out + i);
  });
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

namespace {

// A thread's parts of a row in wide accesses.
int NumParts(int width) { return (width + kRowThreads * kVecWide - 1) / (kRowThreads * kVecWide); }

LaunchShape Tokens(int num_tokens) {
  return {dim3(static_cast<unsigned>(num_tokens)), dim3(kRowThreads)};
}

}  // namespace

Status RmsNorm(const RmsNormArgs<BFloat16>& args, const Stream& stream) {
  if (args.num_tokens == 0) return Status();
  const bool wide = TakesWideAccesses(args.width, {args.x, args.weight, args.out});
  const int parts = NumParts(args.width);
  return Launch("RmsNorm", Tokens(args.num_tokens), stream,
                !wide        ? RmsNormKernel<1, 0>
                : parts <= 1 ? RmsNormKernel<kVecWide, 1>
                : parts <= 2 ? RmsNormKernel<kVecWide, 2>
                : parts <= 4 ? RmsNormKernel<kVecWide, 4>
                             : RmsNormKernel<kVecWide, 0>,
                args);
}

Status LayerNorm(const LayerNormArgs<BFloat16>& args, const Stream& stream) {
  if (args.num_tokens == 0) return Status();
  const bool wide = TakesWideAccesses(args.width, {args.x, args.weight, args.bias, args.out});
  const int parts = NumParts(args.width);
  return Launch("LayerNorm", Tokens(args.num_tokens), stream,
                !wide        ? LayerNormKernel<1, 0>
                : parts <= 1 ? LayerNormKernel<kVecWide, 1>
                : parts <= 2 ? LayerNormKernel<kVecWide, 2>
                : parts <= 4 ? LayerNormKernel<kVecWide, 4>
                             : LayerNormKernel<kVecWide, 0>,
                args);
}

Status SiluMul(const SiluMulArgs<BFloat16>& args, const Stream& stream) {
  if (args.num_tokens == 0) return Status();
  const bool wide = TakesWideAccesses(args.width, {args.x, args.out});
  return Launch("SiluMul", SlicedTokens(args.num_tokens, args.width, wide ? kVecWide : 1), stream,
                wide ? SiluMulKernel<kVecWide> : SiluMulKernel<1>, args);
}

Status PolyNormMul(const PolyNormMulArgs<BFloat16>& args, const Stream& stream) {
  if (args.num_tokens == 0) return Status();
  const bool wide = TakesWideAccesses(args.width, {args.x, args.out});
  const int parts = NumParts(args.width);
  return Launch("PolyNormMul", Tokens(args.num_tokens), stream,
                !wide        ? PolyNormMulKernel<1, 0>
                : parts <= 2 ? PolyNormMulKernel<kVecWide, 2>
                : parts <= 4 ? PolyNormMulKernel<kVecWide, 4>
                : parts <= 8 ? PolyNormMulKernel<kVecWide, 8>
                             : PolyNormMulKernel<kVecWide, 0>,
                args);
}

Status Sigmoid(const SigmoidArgs& args, const Stream& stream) {
  if (args.count == 0) return Status();
  const bool wide = TakesWideAccesses(args.count, {args.x});
  const int64_t slice = kRowThreads * (wide ? kVecWide : 1);
  const LaunchShape shape = {dim3(static_cast<unsigned>((args.count + slice - 1) / slice)),
                             dim3(kRowThreads)};
  return Launch("Sigmoid", shape, stream, wide ? SigmoidKernel<kVecWide> : SigmoidKernel<1>, args);
}

}  // namespace diffserve::cuda
