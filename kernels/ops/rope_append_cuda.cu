#include <cuda_runtime.h>

#include <algorithm>
#include <iterator>

#include "kernels/base/cuda/launch.cuh"
#include "kernels/base/cuda/ptx.cuh"
#include "kernels/ops/rope_append.h"

namespace diffserve::cuda {
namespace {

constexpr int kRopeThreads = 128;
constexpr int kChunk = kImageChunkElements;  // elements in 16 bytes

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

// Slots [begin, end) of a page, K and V, become 0.
template <typename Element>
__device__ __forceinline__ void ClearSlots(const KvFormat& image, Element* page, int begin,
                                           int end) {
  const int k_chunks = image.k_maps * image.head_dim / kChunk;
  const int chunks = k_chunks + image.v_dim / kChunk;
  for (int i = static_cast<int>(threadIdx.x); i < (end - begin) * chunks; i += kRopeThreads) {
    const int slot = begin + i / chunks;
    const int column = i % chunks * kChunk;
    const int offset = i % chunks < k_chunks
                           ? image.KOffset(column / image.head_dim, column % image.head_dim, slot)
                           : image.VOffset(column - k_chunks * kChunk, slot);
    *reinterpret_cast<uint4*>(page + offset) = make_uint4(0, 0, 0, 0);
  }
}

// A thread block a row.
template <typename Codec>
__global__ void __launch_bounds__(kRopeThreads)
    RopeAppendKernel(const __grid_constant__ RopeCall call) {
  const KvFormat image = call.kv.format.As<Codec, KvArrangement::kImage>();
  const int64_t row = blockIdx.x;
  const DeviceSequence sequence = call.batch.sequences[call.batch.token_sequences[row]];
  const int in_sequence = static_cast<int>(row) - sequence.first_row;
  if (in_sequence >= sequence.num_tokens) return;
  const int position = sequence.position + in_sequence;
  const int slot = position % image.page_size;
  const int32_t page_id = call.batch.pages[sequence.first_page + position / image.page_size];
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
    RotateChunks(call, position, i % units, first, second);
    if (head < call.num_q_heads) {
      uint16_t* q = call.q + row * q_width + head * image.head_dim;
      StoreChunk(q + dims.first, first);
      StoreChunk(q + dims.second, second);
    } else {
      const int map = (head - call.num_q_heads) / image.num_groups;
      auto* page = ImagePage<Codec>(call, page_id, (head - call.num_q_heads) % image.num_groups);
      StoreKv<Codec>(page + image.KOffset(map, dims.first, slot), first);
      StoreKv<Codec>(page + image.KOffset(map, dims.second, slot), second);
    }
  }

  // Stage 2: v goes to the page.
  const uint16_t* v = x + q_width + k_heads * image.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < v_width / kChunk; i += kRopeThreads) {
    const int group = i * kChunk / image.v_dim;
    auto* page = ImagePage<Codec>(call, page_id, group);
    StoreKv<Codec>(page + image.VOffset(i * kChunk % image.v_dim, slot), LoadChunk(v + i * kChunk));
  }

  // The row that begins a page clears what no row of the batch fills.
  const int filled = sequence.num_tokens + sequence.num_tokens_after - in_sequence;
  if (slot == 0 && filled < image.page_size) {
    for (int group = 0; group < image.num_groups; ++group)
      ClearSlots(image, ImagePage<Codec>(call, page_id, group), filled, image.page_size);
  }
}

struct Instance {
  DType dtype;
  void (*kernel)(RopeCall);
};
const Instance kInstances[] = {{DType::kBFloat16, RopeAppendKernel<BFloat16Codec>}};

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
