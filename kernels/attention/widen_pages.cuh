// SPDX-License-Identifier: Apache-2.0
// Pages of codes as pages of bfloat16, for Hopper's prefill: wgmma reads its numbers from shared
// memory, as they lie. Widened once per call, not once per tile of queries: a prompt of 2,048
// tokens has 16 tiles for each page in the mean.
//
// A number is its code times its scale, rounded once to bfloat16 (but for 2^-17 of it). Where V is
// stored after a transform, the transform is undone here, in float32, before a number is rounded. K
// stays transformed, as q is.
//
// A thread takes 16 bytes of codes at a time: 16 neighbouring dims of a slot, or 32 of 4 bits.
// Limit by bytes: with (128, 256, 2) a page of 64 KiB is written from 33 KiB of int8.
#pragma once

#include "kernels/attention/attention_plan_cuda.h"
#include "kernels/attention/attention_window.h"
#include "kernels/attention/hadamard.cuh"
#include "kernels/attention/kv_format.h"
#include "kernels/attention/kv_fragments.cuh"
#include "kernels/base/cuda/ptx.cuh"

namespace diffserve::cuda {

inline constexpr int kWidenThreads = 256;

struct WidenCall {
  PagedBatch batch;
  int window;
  PagedKv codes;
  PagedKv widened;       // of as many groups as the grid has in y
  int first_page;        // of PagedBatch::pages; those of the grid's x follow
  int32_t* widened_ids;  // [grid x], the page ids in `widened`
  int first_group;
  float v_factor;  // of the transform that is undone
};

// Bytes 2 i and 2 i + 1 of a word, in the place of bytes 0 and 2.
__device__ __forceinline__ uint32_t SpreadBytes(uint32_t word, int i) {
  return __byte_perm(word, word, i == 0 ? 0x1100 : 0x3322);
}

// A scale as the sum of two bfloat16, each twice. A code times them, rounded once for the product
// with the lower one and once for the sum, is the number rounded but for 2^-17 of it.
struct SplitScale {
  uint32_t upper;
  uint32_t lower;
  __device__ __forceinline__ static SplitScale Of(float scale) {
    const uint32_t upper = PackBFloat16(scale, scale);
    const float rest = scale - BFloat16ToFloat(static_cast<uint16_t>(upper));
    return {upper, PackBFloat16(rest, rest)};
  }
  __device__ __forceinline__ uint32_t Times(uint32_t codes) const {
    return FmaBFloat16(codes, upper, FmaBFloat16(codes, lower, 0));
  }
};

// The 16 bytes of codes that a thread takes, which share a scale.
template <typename Codec, bool kIsV>
struct CodeChunk {
  static constexpr int kBits = kIsV ? Codec::Description().v_bits : Codec::Description().k_bits;
  static constexpr bool kIsTransformed = kIsV && Codec::Description().transforms_v();
  static constexpr int kNumbers = 128 / kBits;
  static constexpr int kPairs = kNumbers / 2;
  using FourBitNumbers = VFragments<Int4Codec>;

  uint32_t pairs[kPairs];  // neighbouring dims: codes less their zero, exactly, as bfloat16
  float scale;

  __device__ __forceinline__ static CodeChunk Of(const uint4& bits, float stored) {
    CodeChunk chunk;
    const uint32_t words[] = {bits.x, bits.y, bits.z, bits.w};
    uint32_t zeros = 0;
    chunk.scale = stored;
    if constexpr (kBits == 4) {
      zeros = FourBitNumbers::Zeros(stored, stored);
      chunk.scale = FourBitNumbers::Scale(stored);
    }
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      // 4-bit dims 16 to 31 are the upper halves of the bytes.
      const uint32_t bytes = SpreadBytes(words[i % 8 / 2], i % 2);
      chunk.pairs[i] = Exactly(kBits == 4 && i >= 8 ? bytes >> 4 : bytes, zeros);
    }
    return chunk;
  }
  __device__ __forceinline__ static uint32_t Exactly(uint32_t codes, uint32_t zeros) {
    if constexpr (kBits == 4) {
      return FourBitNumbers::Lower(codes, zeros);
    } else if constexpr (Codec::Description().dtype == DType::kFp8E4M3) {
      return WidenFp8E4M3(codes);
    } else {
      return WidenInt8(kIsV ? codes : codes ^ 0x00800080u);  // K's codes have a zero of 128
    }
  }

  // Called by all lanes, neighbouring ones with neighbouring chunks of a slot. `dims` share a
  // scale.
  __device__ __forceinline__ void Scale(int chunk, int dims, float v_factor) {
    if constexpr (kIsTransformed) {
      UndoTransform(chunk, dims, scale * v_factor);
    } else {
      const SplitScale split = SplitScale::Of(scale);
#pragma unroll
      for (uint32_t& pair : pairs) pair = split.Times(pair);
    }
  }

 private:
  __device__ __forceinline__ void UndoTransform(int chunk, int dims, float factor) {
    float x[kNumbers];
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      x[2 * i] = __uint_as_float(pairs[i] << 16);
      x[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
    }
#pragma unroll
    for (int bit = 1; bit < kNumbers; bit *= 2) {
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) {
        if ((i & bit) == 0) HadamardPair(x[i], x[i + bit]);
      }
    }
    for (int bit = 1; bit < dims / kNumbers; bit *= 2) {
#pragma unroll
      for (float& number : x) HadamardLanes(number, chunk, bit);
    }
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
      pairs[i] = PackBFloat16(x[2 * i] * factor, x[2 * i + 1] * factor);
  }
};

// One map's K, or V. REQUIRES: a page has whole warps of chunks; a slot's chunks are a power of
// two.
template <typename Codec, bool kIsV>
__device__ __forceinline__ void WidenMatrix(const WidenCall& call, const uint8_t* page,
                                            uint16_t* widened, int map) {
  using Chunk = CodeChunk<Codec, kIsV>;
  const KvFormat from = call.codes.format.As<Codec, KvArrangement::kImage>();
  const KvFormat to = call.widened.format.As<BFloat16Codec, KvArrangement::kImage>();
  const auto* scales = reinterpret_cast<const float*>(page + from.ScaleBegin());
  const int chunks = (kIsV ? from.v_dim : from.head_dim) / Chunk::kNumbers;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < from.page_size * chunks; i += kWidenThreads) {
    const int slot = i / chunks;
    const int dim = i % chunks * Chunk::kNumbers;
    const int at = kIsV ? from.VOffset(dim, slot) : from.KOffset(map, dim, slot);
    const uint4 bits = *reinterpret_cast<const uint4*>(page + int64_t{at} * Chunk::kBits / 8);
    Chunk chunk = Chunk::Of(bits,
                            scales[kIsV ? from.VScale(dim, slot) : from.KScale(map, dim, slot)]);
    chunk.Scale(i % chunks, from.head_dim, call.v_factor);
#pragma unroll
    for (int pair = 0; pair < Chunk::kPairs; pair += 4) {
      const int first = dim + 2 * pair;
      const uint32_t(&pairs)[Chunk::kPairs] = chunk.pairs;
      *reinterpret_cast<uint4*>(widened +
                                (kIsV ? to.VOffset(first, slot) : to.KOffset(map, first, slot))) =
          make_uint4(pairs[pair], pairs[pair + 1], pairs[pair + 2], pairs[pair + 3]);
    }
  }
}

// Whether some row attends to a slot of the page at `index` of PagedBatch::pages. Called by all
// threads.
__device__ __forceinline__ bool IsAttendedTo(const WidenCall& call, int index) {
  __shared__ bool is_attended_to;
  if (threadIdx.x == 0) is_attended_to = false;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < call.batch.num_sequences; i += kWidenThreads) {
    const DeviceSequence sequence = call.batch.sequences[i];
    const int slot = (index - sequence.first_page) * kImagePageSize;
    const int first_page = FirstSlotSeen(sequence.position, call.window) / kImagePageSize;
    if (sequence.num_tokens > 0 && slot >= first_page * kImagePageSize &&
        slot < sequence.position + sequence.num_tokens) {
      is_attended_to = true;
    }
  }
  __syncthreads();
  return is_attended_to;
}

// One thread block per page and group. Three per multiprocessor: without a number ptxas aims at
// four, and spills.
template <typename Codec>
__global__ void __launch_bounds__(kWidenThreads, 3)
    WidenPagesKernel(const __grid_constant__ WidenCall call) {
  const auto index = static_cast<int32_t>(blockIdx.x);
  const auto group = static_cast<int>(blockIdx.y);
  if (!IsAttendedTo(call, call.first_page + index)) return;
  if (group == 0 && threadIdx.x == 0) call.widened_ids[index] = index;
  const int32_t id = call.batch.pages[call.first_page + index];
  const uint8_t* page = call.codes.PageAs<Codec, KvArrangement::kImage>(id,
                                                                        call.first_group + group);
  uint16_t* widened = call.widened.PageAs<BFloat16Codec, KvArrangement::kImage>(index, group);
  for (int map = 0; map < call.codes.format.k_maps; ++map)
    WidenMatrix<Codec, false>(call, page, widened, map);
  WidenMatrix<Codec, true>(call, page, widened, 0);
}

}  // namespace diffserve::cuda
