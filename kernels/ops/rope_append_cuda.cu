// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <type_traits>

#include "kernels/base/cuda/launch.cuh"
#include "kernels/ops/rope_append.cuh"
#include "kernels/ops/rope_append.h"

namespace diffserve::cuda {
namespace {

// A device's store of each codec: eight neighbouring numbers.
template <typename Codec>
__device__ void StoreKv(typename Codec::Element* destination, const Chunk& chunk);
template <>
__device__ __forceinline__ void StoreKv<BFloat16Codec>(uint16_t* destination, const Chunk& chunk) {
  StoreChunk(destination, chunk);
}

// Zeroes slots [begin, end) of a page: K, V and their scales.
template <typename Codec>
__device__ __forceinline__ void ClearSlots(const KvFormat& image, typename Codec::Element* page,
                                           int begin, int end) {
  constexpr KvCodec kCodec = Codec::Description();
  auto* bytes = reinterpret_cast<std::byte*>(page);
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  const int num_threads = static_cast<int>(blockDim.x * blockDim.y);
  const int k_chunks = image.KColumns() * kCodec.k_bits / 128;  // of 16 bytes, per map
  const int v_chunks = image.VColumns() * kCodec.v_bits / 128;
  const int chunks = image.k_maps * k_chunks + v_chunks;
  for (int i = thread; i < (end - begin) * chunks; i += num_threads) {
    const int slot = begin + i / chunks;
    const int chunk = i % chunks;
    const int map = min(chunk / k_chunks, image.k_maps);  // the value k_maps means V
    const int of_matrix = map < image.k_maps ? k_chunks : v_chunks;
    const int before = image.page_size * map * k_chunks;
    const int at = before +
                   KvImageOffset(image.page_size, of_matrix, slot, chunk - map * k_chunks, 1);
    *reinterpret_cast<uint4*>(bytes + 16 * at) = make_uint4(0, 0, 0, 0);
  }
  if constexpr (kCodec.scale_bits > 0) {
    const int runs = image.k_maps + image.v_dim / image.head_dim;
    for (int i = thread; i < (end - begin) * runs; i += num_threads)
      ScalesOf(image, page)[i % runs * image.page_size + begin + i / runs] = 0.0f;
  }
}

// The row that begins a page clears the slots that no row of the batch fills.
template <typename Codec>
__device__ __forceinline__ void ClearFreshPages(const RopeCall& call, const KvFormat& image,
                                                const AppendPlace& place) {
  if (!call.has_kv || place.slot != 0 || place.filled >= image.page_size) return;
  for (int group = 0; group < image.num_groups; ++group)
    ClearSlots<Codec>(image, ImagePage<Codec>(call, place.page_id, group), place.filled,
                      image.page_size);
}

// The bits of a thread's unit in a few heads, which are asked for at once.
struct HeadBits {
  static constexpr int kAtOnce = 2;
  uint4 first[kAtOnce];
  uint4 second[kAtOnce];

  // Heads `begin`, `begin` + `stride` and so on, before `end`.
  __device__ __forceinline__ void Load(const uint16_t* x, int head_dim, const PairedChunks& dims,
                                       int begin, int stride, int end) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int head = begin + i * stride;
      if (head >= end) continue;
      first[i] = LoadBits(x + head * head_dim + dims.first);
      second[i] = LoadBits(x + head * head_dim + dims.second);
    }
  }
};

}  // namespace

// One thread block per row: a column of threads for each unit of a head, whose angles its threads
// read once.
template <typename Codec>
__global__ void __launch_bounds__(kRopeThreads)
    RopeAppendKernel(const __grid_constant__ RopeCall call) {
  const KvFormat image = call.kv.format.As<Codec, KvArrangement::kImage>();
  const int64_t row = call.first_row + int64_t{blockIdx.x};
  const int q_width = call.num_q_heads * image.head_dim;
  const int k_heads = call.has_kv ? image.k_maps * image.num_groups : 0;
  const int v_width = call.has_kv ? image.num_groups * image.v_dim : 0;
  const int num_heads = call.num_q_heads + k_heads;
  const uint16_t* x = call.qkv + row * (num_heads * image.head_dim + v_width);
  const int unit = static_cast<int>(threadIdx.x), stride = static_cast<int>(blockDim.y);
  const PairedChunks dims = ChunksOf(call, unit);
  // The first heads arrive while the row's place is looked up.
  HeadBits bits;
  int begin = static_cast<int>(threadIdx.y);
  bits.Load(x, image.head_dim, dims, begin, stride, num_heads);
  AppendPlace place;
  if (!FindPlace(call, row, &place)) return;

  // Stage 1: q and k are rotated.
  const UnitAngles angles = UnitAngles::Load(call, place.position, unit);
  const int first_offset = image.KOffset(0, dims.first, place.slot);
  const int second_offset = image.KOffset(0, dims.second, place.slot);
  while (begin < num_heads) {
#pragma unroll
    for (int i = 0; i < HeadBits::kAtOnce; ++i) {
      const int head = begin + i * stride;
      if (head >= num_heads) continue;
      Chunk first = ChunkOf(bits.first[i]), second = ChunkOf(bits.second[i]);
      RotateChunks(call, angles, first, second);
      if (head < call.num_q_heads) {
        uint16_t* q = call.q + row * q_width + head * image.head_dim;
        StoreChunk(q + dims.first, first);
        StoreChunk(q + dims.second, second);
      } else {
        const int k_head = head - call.num_q_heads;
        const int map = k_head < image.num_groups ? 0 : 1;
        auto* page = ImagePage<Codec>(call, place.page_id, k_head - map * image.num_groups) +
                     image.KMapBegin(map);
        StoreKv<Codec>(page + first_offset, first);
        StoreKv<Codec>(page + second_offset, second);
      }
    }
    begin += HeadBits::kAtOnce * stride;
    bits.Load(x, image.head_dim, dims, begin, stride, num_heads);
  }

  // Stage 2: v goes to the page.
  const uint16_t* v = x + num_heads * image.head_dim;
  const int num_threads = static_cast<int>(blockDim.x * blockDim.y);
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x); i < v_width / kChunk;
       i += num_threads) {
    const int group = i * kChunk / image.v_dim;
    auto* page = ImagePage<Codec>(call, place.page_id, group);
    StoreKv<Codec>(page + image.VOffset(i * kChunk - group * image.v_dim, place.slot),
                   LoadChunk(v + i * kChunk));
  }
  ClearFreshPages<Codec>(call, image, place);
}

namespace {

template <typename Codec, int kBits, int kLanes>
using CodesOf = std::conditional_t<kBits == 4, FourBitCodes<kLanes>, EightBitCodes<Codec, kLanes>>;

}  // namespace

// The same for pages of codes. One thread block per row, of whole warps; kLanes lanes take a head.
// Four thread blocks per multiprocessor: without a number ptxas aims at more, and spills.
template <typename Codec, int kLanes>
__global__ void __launch_bounds__(kRopeThreads, 4)
    RopeAppendCodesKernel(const __grid_constant__ RopeCall call) {
  constexpr KvCodec kCodec = Codec::Description();
  const KvFormat image = call.kv.format.As<Codec, KvArrangement::kImage>();
  const int64_t row = call.first_row + int64_t{blockIdx.x};
  AppendPlace place;
  if (!FindPlace(call, row, &place)) return;
  using Lane = HeadLane<kLanes>;
  using KCodes = CodesOf<Codec, kCodec.k_bits, kLanes>;
  using VCodes = CodesOf<Codec, kCodec.v_bits, kLanes>;
  const int head_dim = image.head_dim;
  const int k_heads = call.has_kv ? image.k_maps * image.num_groups : 0;
  const bool has_two_parts = image.v_dim > head_dim;  // V of twice a head's width
  const int v_heads = call.has_kv ? image.num_groups * (has_two_parts ? 2 : 1) : 0;
  const uint16_t* q = call.qkv + row * (call.num_q_heads + k_heads + v_heads) * head_dim;
  const uint16_t* k = q + call.num_q_heads * head_dim;
  const uint16_t* v = k + k_heads * head_dim;
  const int first_head = static_cast<int>(threadIdx.x) / kLanes;
  const int heads_at_once = static_cast<int>(blockDim.x) / kLanes;

  // Stage 1: q and k are rotated.
  const Lane of_rotated = Lane::OfRotated(call);
  UnitAngles angles = {};
  if (of_rotated.has_unit) angles = UnitAngles::Load(call, place.position, of_rotated.unit);
  for (int begin = 0; begin < call.num_q_heads; begin += heads_at_once) {
    const int head = begin + first_head;
    const uint16_t* numbers = head < call.num_q_heads ? q + head * head_dim : nullptr;
    const Lane rotated = of_rotated.Loaded(numbers).Rotated(call, angles);
    uint16_t* to = call.q + (row * call.num_q_heads + head) * head_dim;
    if constexpr (kCodec.transforms_k()) {
      const auto lane = TransformedLane<kLanes>::Of(call, rotated);
      if (lane.has_unit) StoreQ(to, lane);
    } else {
      if (rotated.has_unit) StoreQ(to, rotated);
    }
  }
  const CodePlaces k_places = KCodes::PlacesOf(
      call, of_rotated, [&](int dim) { return image.KOffset(0, dim, place.slot); });
  for (int begin = 0; begin < k_heads; begin += heads_at_once) {
    const int head = begin + first_head;
    const uint16_t* numbers = head < k_heads ? k + head * head_dim : nullptr;
    const auto codes = KCodes::Of(call, of_rotated.Loaded(numbers).Rotated(call, angles),
                                  Int8Codec::kZero);
    if (numbers == nullptr) continue;
    const int map = head < image.num_groups ? 0 : 1;
    uint8_t* page = ImagePage<Codec>(call, place.page_id, head - map * image.num_groups);
    codes.Store(page + image.KMapBegin(map) * kCodec.k_bits / 8, k_places);
    if (threadIdx.x % kLanes == 0)
      ScalesOf(image, page)[image.KScale(map, 0, place.slot)] = codes.scale;
  }

  // Stage 2: v goes to the page.
  const Lane of_v = Lane::OfV(call);
  const auto v_places_of = [&](int part) {
    return VCodes::PlacesOf(
        call, of_v, [&](int dim) { return image.VOffset(part * head_dim + dim, place.slot); });
  };
  const CodePlaces v_places[] = {v_places_of(0), v_places_of(has_two_parts ? 1 : 0)};
  for (int begin = 0; begin < v_heads; begin += heads_at_once) {
    const int head = begin + first_head;
    const uint16_t* numbers = head < v_heads ? v + head * head_dim : nullptr;
    const auto codes = VCodes::Of(call, of_v.Loaded(numbers), 0);
    if (numbers == nullptr) continue;
    const bool is_second = has_two_parts && head % 2 == 1;
    uint8_t* page = ImagePage<Codec>(call, place.page_id, has_two_parts ? head / 2 : head);
    codes.Store(page, is_second ? v_places[1] : v_places[0]);
    if (threadIdx.x % kLanes == 0)
      ScalesOf(image, page)[image.VScale(is_second ? head_dim : 0, place.slot)] = codes.scale;
  }
  ClearFreshPages<Codec>(call, image, place);
}

namespace {

struct RopeKernelInstance {
  DType dtype;
  void (*kernel)(RopeCall);
  void (*wide_kernel)(RopeCall);  // heads of more than 128 numbers
  bool has_unit_columns = false;  // of threads

  template <typename Codec>
  static RopeKernelInstance OfCodes(DType dtype) {
    return {dtype, RopeAppendCodesKernel<Codec, kHeadLanes>,
            RopeAppendCodesKernel<Codec, kWideHeadLanes>};
  }
};
const RopeKernelInstance kInstances[] = {
    {DType::kBFloat16, RopeAppendKernel<BFloat16Codec>, RopeAppendKernel<BFloat16Codec>, true},
    RopeKernelInstance::OfCodes<Int8Codec>(DType::kInt8),
    RopeKernelInstance::OfCodes<Int8KInt4VCodec>(DType::kInt8KInt4V),
    RopeKernelInstance::OfCodes<Int4Codec>(DType::kInt4),
    RopeKernelInstance::OfCodes<Fp8E4M3Codec>(DType::kFp8E4M3)};

// The number of threads with which the warps of a block have the least turns of heads in all.
dim3 CodesThreads(const RopeAppendArgs<BFloat16>& args, bool is_wide) {
  const DiffSpec& spec = args.spec;
  const int of_kv = args.has_kv ? spec.num_kv_groups : 0;
  const int of_each[] = {spec.num_q1_heads + spec.num_q2_heads, spec.k_maps * of_kv,
                         spec.v_dim / spec.head_dim * of_kv};
  int best = 0, turns_of_best = 0;
  for (int threads = kRopeThreads; threads >= 64; threads -= 32) {
    const int at_once = threads / (is_wide ? kWideHeadLanes : kHeadLanes);
    int turns = 0;
    for (int heads : of_each) turns += (heads + at_once - 1) / at_once * (threads / 32);
    if (best == 0 || turns < turns_of_best) {
      best = threads;
      turns_of_best = turns;
    }
  }
  return dim3(static_cast<unsigned>(best));
}

}  // namespace

Status RopeAppend(const RopeAppendArgs<BFloat16>& args, const Stream& stream) {
  const int num_rows = args.batch.num_tokens - args.first_row;
  if (num_rows <= 0) return Status();
  const auto* instance = std::ranges::find(kInstances, args.kv.format.codec.dtype,
                                           &RopeKernelInstance::dtype);
  if (instance == std::end(kInstances))
    return Status(StatusCode::kInternal, "no kernel appends to pages of this dtype");
  const RopeCall call = RopeCallOf(args);
  const auto units = static_cast<unsigned>(args.spec.head_dim / (2 * kChunk));
  const bool is_wide = units > kHeadLanes;
  const dim3 columns(units, kRopeThreads / units);
  return Launch("appending to pages",
                {.grid = dim3(static_cast<unsigned>(num_rows)),
                 .threads = instance->has_unit_columns ? columns : CodesThreads(args, is_wide)},
                stream, is_wide ? instance->wide_kernel : instance->kernel, call);
}

}  // namespace diffserve::cuda
