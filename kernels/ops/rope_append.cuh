// SPDX-License-Identifier: Apache-2.0
// The parts of the RopeAppend kernels: eight numbers at a time, their rotation and, for pages of
// codes, a head in eight lanes with its Hadamard transform and its codes.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/attention/hadamard.cuh"
#include "kernels/attention/kv_format.h"
#include "kernels/attention/paged_batch.h"
#include "kernels/base/cuda/ptx.cuh"
#include "kernels/base/rounded.h"
#include "kernels/ops/rope_append.h"

namespace diffserve::cuda {

inline constexpr int kRopeThreads = 128;
inline constexpr int kChunk = kImageChunkElements;  // of qkv, in 16 bytes
// Lanes for a head, of two chunks each: a head of up to 128 numbers, or of up to 256.
inline constexpr int kHeadLanes = 8;
inline constexpr int kWideHeadLanes = 16;
inline constexpr unsigned kAllLanes = 0xffffffffu;

struct RopeCall {
  PagedBatch batch;
  PagedKv kv;
  const float* cos;
  const float* sin;
  const uint16_t* qkv;
  uint16_t* q;
  int num_q_heads;  // of both maps
  bool is_rotated;
  bool is_interleaved;
  bool has_kv;              // false: nothing is appended
  double transform_factor;  // of hadamard.h
  int first_row;            // of those that are appended
};

inline RopeCall RopeCallOf(const RopeAppendArgs<BFloat16>& args) {
  const int head_dim = args.spec.head_dim;
  return {
      .batch = args.batch,
      .kv = args.kv,
      .cos = args.rope.cos,
      .sin = args.rope.sin,
      .qkv = args.qkv,
      .q = args.q,
      .num_q_heads = args.spec.num_q1_heads + args.spec.num_q2_heads,
      .is_rotated = args.style != RopeStyle::kNone,
      .is_interleaved = args.style == RopeStyle::kInterleaved,
      .has_kv = args.has_kv,
      .transform_factor = 1 / std::sqrt(static_cast<double>(head_dim & -head_dim)),
      .first_row = args.first_row,
  };
}

// The destination of a row of the batch.
struct AppendPlace {
  int position;
  int slot;
  int filled;  // slots from this one on that rows of the batch fill
  int32_t page_id;
};
__device__ __forceinline__ bool FindPlace(const RopeCall& call, int64_t row, AppendPlace* place) {
  const DeviceSequence sequence = call.batch.sequences[call.batch.token_sequences[row]];
  const int in_sequence = static_cast<int>(row) - sequence.first_row;
  const int page_size = call.kv.format.page_size;
  const int position = sequence.position + in_sequence;
  if (in_sequence >= sequence.num_tokens) return false;
  *place = {position, position % page_size,
            sequence.num_tokens + sequence.num_tokens_after - in_sequence,
            call.has_kv ? call.batch.pages[sequence.first_page + position / page_size] : -1};
  return true;
}

__device__ __forceinline__ float LowHalf(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float HighHalf(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

template <typename Codec>
__device__ __forceinline__ typename Codec::Element* ImagePage(const RopeCall& call, int32_t id,
                                                              int group) {
  return call.kv.PageAs<Codec, KvArrangement::kImage>(id, group);
}

__device__ __forceinline__ float* ScalesOf(const KvFormat& image, uint8_t* page) {
  return reinterpret_cast<float*>(page + image.ScaleBegin());
}

struct Chunk {
  float x[kChunk];
};

__device__ __forceinline__ uint4 LoadBits(const uint16_t* source) {
  return *reinterpret_cast<const uint4*>(source);
}
__device__ __forceinline__ Chunk ChunkOf(const uint4& bits) {
  return {{LowHalf(bits.x), HighHalf(bits.x), LowHalf(bits.y), HighHalf(bits.y), LowHalf(bits.z),
           HighHalf(bits.z), LowHalf(bits.w), HighHalf(bits.w)}};
}
__device__ __forceinline__ Chunk LoadChunk(const uint16_t* source) {
  return ChunkOf(LoadBits(source));
}

__device__ __forceinline__ void StoreChunk(uint16_t* destination, const Chunk& chunk) {
  const float(&x)[kChunk] = chunk.x;
  *reinterpret_cast<uint4*>(destination) = make_uint4(
      PackBFloat16(x[0], x[1]), PackBFloat16(x[2], x[3]), PackBFloat16(x[4], x[5]),
      PackBFloat16(x[6], x[7]));
}

// Each operation is rounded, so that every kernel that rotates gives the same bits.
__device__ __forceinline__ void Rotate(float& a, float& b, float cos, float sin) {
  const float rotated = rounded::Sub(rounded::Mul(a, cos), rounded::Mul(b, sin));
  b = rounded::Add(rounded::Mul(b, cos), rounded::Mul(a, sin));
  a = rotated;
}

// Two chunks that hold eight pairs of a head. Half-split: dims [8 unit, + 8) of each half.
// Interleaved: 16 neighbouring dims.
struct PairedChunks {
  int first;  // dims
  int second;
};
__device__ __forceinline__ PairedChunks ChunksOf(const RopeCall& call, int unit) {
  if (call.is_interleaved) return {2 * kChunk * unit, 2 * kChunk * unit + kChunk};
  return {kChunk * unit, call.kv.format.head_dim / 2 + kChunk * unit};
}

// cos and sin of a unit's eight pairs.
struct UnitAngles {
  float cos[kChunk];
  float sin[kChunk];

  // Without rotation nothing is read.
  __device__ __forceinline__ static UnitAngles Load(const RopeCall& call, int position, int unit) {
    UnitAngles angles = {};
    if (!call.is_rotated) return angles;
    const int64_t begin = int64_t{position} * (call.kv.format.head_dim / 2) + kChunk * unit;
    LoadEight(call.cos + begin, angles.cos);
    LoadEight(call.sin + begin, angles.sin);
    return angles;
  }

 private:
  __device__ __forceinline__ static void LoadEight(const float* from, float (&to)[kChunk]) {
#pragma unroll
    for (int i = 0; i < kChunk; i += 4) {
      const uint4 bits = *reinterpret_cast<const uint4*>(from + i);
      to[i] = __uint_as_float(bits.x);
      to[i + 1] = __uint_as_float(bits.y);
      to[i + 2] = __uint_as_float(bits.z);
      to[i + 3] = __uint_as_float(bits.w);
    }
  }
};

__device__ __forceinline__ void RotateChunks(const RopeCall& call, const UnitAngles& angles,
                                             Chunk& first, Chunk& second) {
  if (!call.is_rotated) return;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    if (call.is_interleaved) {
      Chunk& chunk = i < kChunk / 2 ? first : second;
      Rotate(chunk.x[2 * i % kChunk], chunk.x[2 * i % kChunk + 1], angles.cos[i], angles.sin[i]);
    } else {
      Rotate(first.x[i], second.x[i], angles.cos[i], angles.sin[i]);
    }
  }
}

// A head of q or K, or of a part of V with that width, in kLanes lanes.
template <int kLanes>
struct HeadLane {
  int unit;       // of the head
  bool has_unit;  // false: the lane's numbers are 0
  PairedChunks dims;
  Chunk first;
  Chunk second;

  // The lane's part of any head of q or K, or of V.
  __device__ __forceinline__ static HeadLane OfRotated(const RopeCall& call) {
    HeadLane lane = OfV(call);
    lane.dims = ChunksOf(call, lane.unit);
    return lane;
  }
  __device__ __forceinline__ static HeadLane OfV(const RopeCall& call) {
    HeadLane lane = {};
    lane.unit = static_cast<int>(threadIdx.x) % kLanes;
    lane.has_unit = lane.unit < call.kv.format.head_dim / (2 * kChunk);
    lane.dims = {2 * kChunk * lane.unit, 2 * kChunk * lane.unit + kChunk};
    return lane;
  }
  // `numbers`: the head's; nullptr: there is no head.
  __device__ __forceinline__ HeadLane Loaded(const uint16_t* numbers) const {
    HeadLane lane = *this;
    lane.has_unit = has_unit && numbers != nullptr;
    if (!lane.has_unit) return lane;
    lane.first = LoadChunk(numbers + dims.first);
    lane.second = LoadChunk(numbers + dims.second);
    return lane;
  }
  __device__ __forceinline__ HeadLane Rotated(const RopeCall& call,
                                              const UnitAngles& angles) const {
    HeadLane lane = *this;
    RotateChunks(call, angles, lane.first, lane.second);
    return lane;
  }
};

// The same after the Hadamard transform: a lane has numbers [16 unit, 16 unit + 16).
template <int kLanes>
struct TransformedLane {
  int unit;
  bool has_unit;
  double x[2 * kChunk];

  __device__ __forceinline__ static TransformedLane Of(const RopeCall& call,
                                                       const HeadLane<kLanes>& before) {
    TransformedLane lane;
    lane.unit = before.unit;
    lane.has_unit = before.has_unit;
    lane.Gather(before);
    const int head_dim = call.kv.format.head_dim;
    lane.Transform(head_dim & -head_dim, call.transform_factor);
    return lane;
  }

 private:
  __device__ __forceinline__ void Gather(const HeadLane<kLanes>& before) {
    __shared__ float rows[kRopeThreads / kLanes][2 * kChunk * kLanes];
    float* row = rows[threadIdx.x / kLanes];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kChunk && has_unit; ++i) {
      row[before.dims.first + i] = before.first.x[i];
      row[before.dims.second + i] = before.second.x[i];
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2 * kChunk; ++i) x[i] = has_unit ? double{row[2 * kChunk * unit + i]} : 0.0;
  }
  __device__ __forceinline__ void Transform(int block, double factor) {
#pragma unroll
    for (int bit = 1; bit < 2 * kChunk; bit *= 2) {
#pragma unroll
      for (int i = 0; i < 2 * kChunk; ++i) {
        if ((i & bit) == 0) HadamardPair(x[i], x[i + bit]);
      }
    }
    for (int bit = 1; bit < block / (2 * kChunk); bit *= 2) {
#pragma unroll
      for (int i = 0; i < 2 * kChunk; ++i) HadamardLanes(x[i], unit, bit);
    }
#pragma unroll
    for (int i = 0; i < 2 * kChunk; ++i) x[i] *= factor;
  }
};

template <int kLanes>
__device__ __forceinline__ void StoreQ(uint16_t* q, const HeadLane<kLanes>& lane) {
  StoreChunk(q + lane.dims.first, lane.first);
  StoreChunk(q + lane.dims.second, lane.second);
}
template <int kLanes>
__device__ __forceinline__ void StoreQ(uint16_t* q, const TransformedLane<kLanes>& lane) {
  Chunk halves[2];
#pragma unroll
  for (int i = 0; i < 2 * kChunk; ++i)
    halves[i / kChunk].x[i % kChunk] = static_cast<float>(lane.x[i]);
  StoreChunk(q + 2 * kChunk * lane.unit, halves[0]);
  StoreChunk(q + 2 * kChunk * lane.unit + kChunk, halves[1]);
}

// Computes x / divisor for many x with one division, bitwise equal to a division each. The divisor
// is a float's value, so no quotient is close enough to the middle of two doubles for the error of
// the last product to matter.
struct Quotients {
  double divisor;
  double inverse;
  __device__ __forceinline__ explicit Quotients(double by) : divisor(by), inverse(1 / by) {}
  __device__ __forceinline__ double operator()(double x) const {
    const double near = x * inverse;
    return fma(fma(-near, divisor, x), inverse, near);
  }
};

// Four numbers that are `codes` times the scale, as bytes. `zero` is 0 or 128.
template <typename Codec>
struct EightBits {
  static constexpr float kMaxCode = Int8Codec::kMaxCode;
  __device__ __forceinline__ static uint32_t Pack(const double (&codes)[4], int zero) {
    uint32_t rounded[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) rounded[i] = static_cast<uint32_t>(__double2int_rn(codes[i]));
    const uint32_t lower = __byte_perm(rounded[0], rounded[1], 0x0040);
    const uint32_t upper = __byte_perm(rounded[2], rounded[3], 0x0040);
    return __byte_perm(lower, upper, 0x5410) ^ static_cast<uint32_t>(zero) * 0x01010101u;
  }
};
template <>
struct EightBits<Fp8E4M3Codec> {
  static constexpr float kMaxCode = kFp8E4M3Max;
  __device__ __forceinline__ static uint32_t Pack(const double (&codes)[4], int) {
    float rounded[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) rounded[i] = static_cast<float>(codes[i]);
    return PackFp8E4M3(rounded[0], rounded[1]) | PackFp8E4M3(rounded[2], rounded[3]) << 16;
  }
};

// Bytes from the begin of a page, or of a map of K, to where a lane stores its codes: two places at
// most. offset(dim) is the position of a code from there, counted in codes.
struct CodePlaces {
  int first;
  int second;
};

// The numbers of a head, which share a scale, as codes by the definition in kv_format.cc. Called by
// all lanes.
template <typename Codec, int kLanes>
struct EightBitCodes {
  using Bits = EightBits<Codec>;

  HeadLane<kLanes> lane;
  int zero;
  float scale;
  double largest;  // 0: every code is 0

  __device__ __forceinline__ static EightBitCodes Of(const RopeCall&, const HeadLane<kLanes>& lane,
                                                     int zero) {
    float largest = 0.0f;
    float poison = 0.0f;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      largest = fmaxf(largest, fmaxf(fabsf(lane.first.x[i]), fabsf(lane.second.x[i])));
      poison += lane.first.x[i] * 0.0f + lane.second.x[i] * 0.0f;
    }
    for (int bits = 1; bits < kLanes; bits *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, bits));
      poison += __shfl_xor_sync(kAllLanes, poison, bits);
    }
    if (poison != 0.0f) return {lane, zero, poison, 0};  // poison is a NaN
    const double scale = Quotients(Bits::kMaxCode)(largest);
    return {lane, zero, static_cast<float>(scale), largest};
  }
  template <typename Offset>
  __device__ __forceinline__ static CodePlaces PlacesOf(const RopeCall&,
                                                        const HeadLane<kLanes>& lane,
                                                        const Offset& offset) {
    if (!lane.has_unit) return {0, 0};
    return {offset(lane.dims.first), offset(lane.dims.second)};
  }
  __device__ __forceinline__ void Store(uint8_t* begin, const CodePlaces& places) const {
    if (!lane.has_unit) return;
    const Quotients quotient(largest == 0 ? 1 : largest);
    StoreChunkCodes(begin + places.first, lane.first, quotient);
    StoreChunkCodes(begin + places.second, lane.second, quotient);
  }

 private:
  __device__ __forceinline__ void StoreChunkCodes(uint8_t* codes, const Chunk& chunk,
                                                  const Quotients& quotient) const {
    uint32_t words[2];
#pragma unroll
    for (int word = 0; word < 2; ++word) {
      double numbers[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const double x = chunk.x[4 * word + i];
        numbers[i] = largest == 0 ? 0 : quotient(x * Bits::kMaxCode);
      }
      words[word] = Bits::Pack(numbers, zero);
    }
    *reinterpret_cast<uint2*>(codes) = make_uint2(words[0], words[1]);
  }
};

// Two lanes have 32 neighbouring codes, of which two share a byte. One lane stores the lower 8
// bytes, the other the upper 8.
template <int kLanes>
struct FourBitCodes {
  bool has_bytes;
  float scale;
  uint32_t bytes[2];

  __device__ __forceinline__ static FourBitCodes Of(const RopeCall& call,
                                                    const HeadLane<kLanes>& before, int) {
    const auto lane = TransformedLane<kLanes>::Of(call, before);
    double min = 0, max = 0, poison = 0;
#pragma unroll
    for (int i = 0; i < 2 * kChunk; ++i) {
      // fmin and fmax would also look for NaNs, which are in `poison`.
      min = lane.x[i] < min ? lane.x[i] : min;
      max = lane.x[i] > max ? lane.x[i] : max;
      poison += lane.x[i] * 0.0;
    }
    for (int bits = 1; bits < kLanes; bits *= 2) {
      min = fmin(min, __shfl_xor_sync(kAllLanes, min, bits));
      max = fmax(max, __shfl_xor_sync(kAllLanes, max, bits));
      poison += __shfl_xor_sync(kAllLanes, poison, bits);
    }
    const double range = Quotients(FourBits::kMaxCode)(max - min);
    const float step = FourBits::StepOf(static_cast<float>(range));
    const float not_finite = static_cast<float>(poison) + step * 0.0f;  // NaN or 0
    const bool is_zero = not_finite != 0.0f || step == 0.0f;
    const Quotients in_steps(is_zero ? 1 : step);
    const double zero = is_zero ? 0 : rint(in_steps(-min) * FourBits::kZeroUnits);
    FourBitCodes codes;
    codes.has_bytes = HasBytes(call, lane.unit);
    codes.scale = not_finite != 0.0f ? not_finite : FourBits::ScaleOf(step, static_cast<int>(zero));
    codes.Pack(lane, is_zero, in_steps, zero / FourBits::kZeroUnits);
    return codes;
  }
  template <typename Offset>
  __device__ __forceinline__ static CodePlaces PlacesOf(const RopeCall& call,
                                                        const HeadLane<kLanes>& lane,
                                                        const Offset& offset) {
    if (!HasBytes(call, lane.unit)) return {0, 0};
    return {offset(2 * kChunk * (lane.unit & ~1)) / 2 + lane.unit % 2 * kChunk, 0};
  }
  __device__ __forceinline__ void Store(uint8_t* begin, const CodePlaces& places) const {
    if (!has_bytes) return;
    *reinterpret_cast<uint2*>(begin + places.first) = make_uint2(bytes[0], bytes[1]);
  }

 private:
  // Also of a lane without numbers, if its neighbour has some.
  __device__ __forceinline__ static bool HasBytes(const RopeCall& call, int unit) {
    return 2 * kChunk * (unit & ~1) < call.kv.format.head_dim;
  }
  __device__ __forceinline__ void Pack(const TransformedLane<kLanes>& lane, bool is_zero,
                                       const Quotients& in_steps, double zero) {
    uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 2 * kChunk; ++i) {
      const int code = is_zero || !lane.has_unit ? 0 : __double2int_rn(in_steps(lane.x[i]) + zero);
      const int within = min(max(code, 0), int{FourBits::kMaxCode});
      words[i / 4] |= static_cast<uint32_t>(within) << (8 * (i % 4));
    }
    const bool is_upper = lane.unit % 2 != 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t mine = is_upper ? words[2 + i] : words[i];
      const uint32_t other = __shfl_xor_sync(kAllLanes, is_upper ? words[i] : words[2 + i], 1);
      bytes[i] = is_upper ? other | mine << 4 : mine | other << 4;
    }
  }
};

}  // namespace diffserve::cuda
