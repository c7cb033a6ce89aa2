#include <cuda_runtime.h>

#include <algorithm>
#include <iterator>

#include "kernels/base/cuda/launch.cuh"
#include "kernels/base/cuda/ptx.cuh"
#include "kernels/ops/rope_append.h"

namespace diffserve::cuda {
namespace {

constexpr int kRopeThreads = 128;
constexpr int kChunk = kImageChunkElements;  // of qkv, in 16 bytes
constexpr int kHeadLanes = 8;                // two chunks each hold a head of up to 128

struct RopeCall {
  PagedBatch batch;
  PagedKv kv;
  const float* cos;
  const float* sin;
  const uint16_t* qkv;
  uint16_t* q;
  int num_q_heads;  // of both maps
  bool is_interleaved;
};

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

__device__ __forceinline__ Chunk LoadChunk(const uint16_t* source) {
  const uint4 bits = *reinterpret_cast<const uint4*>(source);
  return {{LowHalf(bits.x), HighHalf(bits.x), LowHalf(bits.y), HighHalf(bits.y), LowHalf(bits.z),
           HighHalf(bits.z), LowHalf(bits.w), HighHalf(bits.w)}};
}

__device__ __forceinline__ void StoreChunk(uint16_t* destination, const Chunk& chunk) {
  const float(&x)[kChunk] = chunk.x;
  *reinterpret_cast<uint4*>(destination) = make_uint4(
      PackBFloat16(x[0], x[1]), PackBFloat16(x[2], x[3]), PackBFloat16(x[4], x[5]),
      PackBFloat16(x[6], x[7]));
}

__device__ __forceinline__ void Rotate(float& a, float& b, float cos, float sin) {
  const float rotated = a * cos - b * sin;
  b = b * cos + a * sin;
  a = rotated;
}

// Two chunks that hold eight pairs of a head: half-split, dims [8 unit, + 8) of either half;
// interleaved, 16 neighbouring dims.
struct PairedChunks {
  int first;  // dims
  int second;
};
__device__ __forceinline__ PairedChunks ChunksOf(const RopeCall& call, int unit) {
  if (call.is_interleaved) return {2 * kChunk * unit, 2 * kChunk * unit + kChunk};
  return {kChunk * unit, call.kv.format.head_dim / 2 + kChunk * unit};
}

__device__ __forceinline__ void RotateChunks(const RopeCall& call, int position, int unit,
                                             Chunk& first, Chunk& second) {
  const int64_t begin = int64_t{position} * (call.kv.format.head_dim / 2) + kChunk * unit;
  const float* cos = call.cos + begin;
  const float* sin = call.sin + begin;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    if (call.is_interleaved) {
      Chunk& chunk = i < kChunk / 2 ? first : second;
      Rotate(chunk.x[2 * i % kChunk], chunk.x[2 * i % kChunk + 1], cos[i], sin[i]);
    } else {
      Rotate(first.x[i], second.x[i], cos[i], sin[i]);
    }
  }
}

// A device's store of each codec: eight neighbouring numbers.
template <typename Codec>
__device__ void StoreKv(typename Codec::Element* destination, const Chunk& chunk);
template <>
__device__ __forceinline__ void StoreKv<BFloat16Codec>(uint16_t* destination, const Chunk& chunk) {
  StoreChunk(destination, chunk);
}

// Slots [begin, end) of a page, K and V and their scales, become 0.
template <typename Codec>
__device__ __forceinline__ void ClearSlots(const KvFormat& image, typename Codec::Element* page,
                                           int begin, int end) {
  constexpr int kWidth = 16 / sizeof(typename Codec::Element);
  const int thread = static_cast<int>(threadIdx.x);
  const int k_chunks = image.k_maps * image.head_dim / kWidth;
  const int chunks = k_chunks + image.v_dim / kWidth;
  for (int i = thread; i < (end - begin) * chunks; i += kRopeThreads) {
    const int slot = begin + i / chunks;
    const int column = i % chunks * kWidth;
    const int offset = i % chunks < k_chunks
                           ? image.KOffset(column / image.head_dim, column % image.head_dim, slot)
                           : image.VOffset(column - k_chunks * kWidth, slot);
    *reinterpret_cast<uint4*>(page + offset) = make_uint4(0, 0, 0, 0);
  }
  if constexpr (Codec::Description().scale_bits > 0) {
    const int runs = image.k_maps + image.v_dim / image.head_dim;
    for (int i = thread; i < (end - begin) * runs; i += kRopeThreads)
      ScalesOf(image, page)[i % runs * image.page_size + begin + i / runs] = 0.0f;
  }
}

// Where a row of the batch goes.
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
            call.batch.pages[sequence.first_page + position / page_size]};
  return true;
}

// The row that begins a page clears what no row of the batch fills.
template <typename Codec>
__device__ __forceinline__ void ClearFreshPages(const RopeCall& call, const KvFormat& image,
                                                const AppendPlace& place) {
  if (place.slot != 0 || place.filled >= image.page_size) return;
  for (int group = 0; group < image.num_groups; ++group)
    ClearSlots<Codec>(image, ImagePage<Codec>(call, place.page_id, group), place.filled,
                      image.page_size);
}

// A thread block a row.
template <typename Codec>
__global__ void __launch_bounds__(kRopeThreads)
    RopeAppendKernel(const __grid_constant__ RopeCall call) {
  const KvFormat image = call.kv.format.As<Codec, KvArrangement::kImage>();
  const int64_t row = blockIdx.x;
  AppendPlace place;
  if (!FindPlace(call, row, &place)) return;
  const int q_width = call.num_q_heads * image.head_dim;
  const int k_heads = image.k_maps * image.num_groups;
  const int v_width = image.num_groups * image.v_dim;
  const uint16_t* x = call.qkv + row * (q_width + k_heads * image.head_dim + v_width);

  // Stage 1: q and k are rotated. Eight pairs a thread at a time.
  const int units = image.head_dim / (2 * kChunk);
  for (int i = static_cast<int>(threadIdx.x); i < (call.num_q_heads + k_heads) * units;
       i += kRopeThreads) {
    const int head = i / units;
    const PairedChunks dims = ChunksOf(call, i % units);
    Chunk first = LoadChunk(x + head * image.head_dim + dims.first);
    Chunk second = LoadChunk(x + head * image.head_dim + dims.second);
    RotateChunks(call, place.position, i % units, first, second);
    if (head < call.num_q_heads) {
      uint16_t* q = call.q + row * q_width + head * image.head_dim;
      StoreChunk(q + dims.first, first);
      StoreChunk(q + dims.second, second);
    } else {
      const int map = (head - call.num_q_heads) / image.num_groups;
      auto* page = ImagePage<Codec>(call, place.page_id,
                                    (head - call.num_q_heads) % image.num_groups);
      StoreKv<Codec>(page + image.KOffset(map, dims.first, place.slot), first);
      StoreKv<Codec>(page + image.KOffset(map, dims.second, place.slot), second);
    }
  }

  // Stage 2: v goes to the page.
  const uint16_t* v = x + q_width + k_heads * image.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < v_width / kChunk; i += kRopeThreads) {
    const int group = i * kChunk / image.v_dim;
    auto* page = ImagePage<Codec>(call, place.page_id, group);
    StoreKv<Codec>(page + image.VOffset(i * kChunk % image.v_dim, place.slot),
                   LoadChunk(v + i * kChunk));
  }
  ClearFreshPages<Codec>(call, image, place);
}

// The numbers that share a scale, 16 of each of eight lanes: their codes as the definition has them
// (kv_format.cc).
struct ScaledChunks {
  float scale;
  double largest;  // 0: every code is 0

  __device__ __forceinline__ static ScaledChunks Of(const Chunk& first, const Chunk& second) {
    float largest = 0.0f;
    float poison = 0.0f;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      largest = fmaxf(largest, fmaxf(fabsf(first.x[i]), fabsf(second.x[i])));
      poison += first.x[i] * 0.0f + second.x[i] * 0.0f;
    }
    for (int bits = 1; bits < kHeadLanes; bits *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, bits));
      poison += __shfl_xor_sync(0xffffffffu, poison, bits);
    }
    if (poison != 0.0f) return {poison, 0};  // it is a NaN
    return {static_cast<float>(double{largest} / Int8Codec::kMost), largest};
  }
  __device__ __forceinline__ uint32_t Code(float value, int zero) const {
    const double code = largest == 0 ? 0 : rint(double{value} * Int8Codec::kMost / largest);
    return static_cast<uint32_t>(static_cast<int>(code) + zero) & 0xff;
  }
  __device__ __forceinline__ void Store(uint8_t* destination, const Chunk& chunk, int zero) const {
    uint32_t words[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kChunk; ++i) words[i / 4] |= Code(chunk.x[i], zero) << (8 * (i % 4));
    *reinterpret_cast<uint2*>(destination) = make_uint2(words[0], words[1]);
  }
};

// The same for pages of codes. A thread block a row; eight lanes take a head of q, of K or of a
// part of V that is as wide.
__global__ void __launch_bounds__(kRopeThreads)
    RopeAppendInt8Kernel(const __grid_constant__ RopeCall call) {
  const KvFormat image = call.kv.format.As<Int8Codec, KvArrangement::kImage>();
  const int64_t row = blockIdx.x;
  AppendPlace place;
  if (!FindPlace(call, row, &place)) return;
  const int k_heads = image.k_maps * image.num_groups;
  const int num_rotated = call.num_q_heads + k_heads;
  const int parts = image.v_dim / image.head_dim;
  const int num_heads = num_rotated + image.num_groups * parts;
  const uint16_t* x = call.qkv + row * num_heads * image.head_dim;
  const int unit = static_cast<int>(threadIdx.x) % kHeadLanes;
  const bool has_unit = unit < image.head_dim / (2 * kChunk);
  for (int begin = 0; begin < num_heads; begin += kRopeThreads / kHeadLanes) {
    const int head = begin + static_cast<int>(threadIdx.x) / kHeadLanes;
    const bool is_rotated = head < num_rotated;
    const PairedChunks dims = is_rotated
                                  ? ChunksOf(call, unit)
                                  : PairedChunks{2 * kChunk * unit, 2 * kChunk * unit + kChunk};
    const bool takes_part = has_unit && head < num_heads;
    Chunk first = {}, second = {};
    if (takes_part) {
      first = LoadChunk(x + head * image.head_dim + dims.first);
      second = LoadChunk(x + head * image.head_dim + dims.second);
      if (is_rotated) RotateChunks(call, place.position, unit, first, second);
    }
    const ScaledChunks scaled = ScaledChunks::Of(first, second);
    if (!takes_part) continue;
    if (head < call.num_q_heads) {
      uint16_t* q = call.q + (row * call.num_q_heads + head) * image.head_dim;
      StoreChunk(q + dims.first, first);
      StoreChunk(q + dims.second, second);
      continue;
    }
    const int of_kv = is_rotated ? head - call.num_q_heads : head - num_rotated;
    const int group = is_rotated ? of_kv % image.num_groups : of_kv / parts;
    const int map = of_kv / image.num_groups;              // of K
    const int first_dim = of_kv % parts * image.head_dim;  // of V
    uint8_t* page = ImagePage<Int8Codec>(call, place.page_id, group);
    const auto offset = [&](int dim) {
      return is_rotated ? image.KOffset(map, dim, place.slot)
                        : image.VOffset(first_dim + dim, place.slot);
    };
    const int zero = is_rotated ? Int8Codec::kZero : 0;
    scaled.Store(page + offset(dims.first), first, zero);
    scaled.Store(page + offset(dims.second), second, zero);
    if (unit == 0)
      ScalesOf(image, page)[is_rotated ? image.KScale(map, 0, place.slot)
                                       : image.VScale(first_dim, place.slot)] = scaled.scale;
  }
  ClearFreshPages<Int8Codec>(call, image, place);
}

struct Instance {
  DType dtype;
  void (*kernel)(RopeCall);
};
const Instance kInstances[] = {{DType::kBFloat16, RopeAppendKernel<BFloat16Codec>},
                               {DType::kInt8, RopeAppendInt8Kernel}};

}  // namespace

Status RopeAppend(const RopeAppendArgs<BFloat16>& args, const Stream& stream) {
  if (args.batch.num_tokens == 0) return Status();
  const auto* instance = std::ranges::find(kInstances, args.kv.format.codec.dtype,
                                           &Instance::dtype);
  if (instance == std::end(kInstances))
    return Status(StatusCode::kInternal, "no kernel appends to pages of this dtype");
  const RopeCall call = {
      .batch = args.batch,
      .kv = args.kv,
      .cos = args.rope.cos,
      .sin = args.rope.sin,
      .qkv = args.qkv,
      .q = args.q,
      .num_q_heads = args.spec.num_q1_heads + args.spec.num_q2_heads,
      .is_interleaved = args.style == RopeStyle::kInterleaved,
  };
  return Launch(
      "appending to pages",
      {.grid = dim3(static_cast<unsigned>(args.batch.num_tokens)), .threads = dim3(kRopeThreads)},
      stream, instance->kernel, call);
}

}  // namespace diffserve::cuda
