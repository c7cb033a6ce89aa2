// SPDX-License-Identifier: Apache-2.0
// The warpgroup that fetches for the Hopper prefill kernel if pages hold codes. A bulk copy brings
// a page's codes and scales into shared memory. The warpgroup widens them to bfloat16 numbers,
// times their scales and rounded once, in the image that wgmma reads. So each page is widened once
// for all rows of a tile.
//
// A thread widens half a chunk of 16 bytes at a time, of 4-bit codes the lower or the upper halves
// of its bytes: eight neighbouring numbers, one chunk of the image. Eight lanes at a time read and
// write different banks, since those whose chunks would meet begin with different halves of bytes.
//
// Limits by count: eight numbers take 44 instructions (39 of 4 bits). With (64, 128, 2) a page
// costs a scheduler about 700 issue slots here and 900 in the warps that compute, beside 768 cycles
// of wgmma. So issue bounds these kernels.
#pragma once

#include "kernels/attention/diff_prefill_sm90a_pages.cuh"

namespace diffserve::cuda {

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

// How eight neighbouring numbers of a slot become bfloat16, from two words of codes. Codes of 4
// bits are in the lower or the `upper` halves of the words' bytes.
template <typename Codec, bool kIsV>
struct CodeWidener {
  static constexpr int kBits = kIsV ? Codec::Description().v_bits : Codec::Description().k_bits;
  using FourBitNumbers = VFragments<Int4Codec>;

  SplitScale scale;
  uint32_t zeros = 0;

  __device__ __forceinline__ static CodeWidener Of(float stored) {
    CodeWidener widener;
    if constexpr (kBits == 4) {
      widener.zeros = FourBitNumbers::Zeros(stored, stored);
      stored = FourBitNumbers::Scale(stored);
    }
    widener.scale = SplitScale::Of(stored);
    return widener;
  }
  __device__ __forceinline__ uint32_t Exactly(uint32_t codes) const {
    if constexpr (kBits == 4) {
      return FourBitNumbers::Lower(codes, zeros);
    } else if constexpr (Codec::Description().dtype == DType::kFp8E4M3) {
      return WidenFp8E4M3(codes);
    } else {
      return WidenInt8(kIsV ? codes : codes ^ 0x00800080u);  // K's codes have a zero of 128
    }
  }
  __device__ __forceinline__ void Widen(uint32_t (&pairs)[4], uint32_t first,
                                        uint32_t second) const {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      pairs[i] = scale.Times(Exactly(SpreadBytes(i < 2 ? first : second, i % 2)));
  }
};

// A matrix of a page, from its codes to its image.
template <typename Codec, bool kIsV, int kColumns>
struct CodeMatrix {
  using Widener = CodeWidener<Codec, kIsV>;
  static constexpr int kNumbers = 128 / Widener::kBits;  // per chunk of codes
  static constexpr int kChunks = kColumns / kNumbers;    // per slot
  static constexpr int kTileChunks = kChunks < 8 ? kChunks : 8;
  static constexpr int kPasses = kNumbers / 16;  // per tile
  static constexpr int kSlotsAtOnce = kWarpgroupThreads / 2 / kTileChunks;
  static constexpr uint32_t kTileBytes = kImagePageSize * kTileChunks * kChunkBytes;
  static constexpr uint32_t kBytes = kChunks / kTileChunks * kTileBytes;
  static constexpr uint32_t kScaleBytes = kImagePageSize * sizeof(float);  // of kHeadDim columns
  static_assert(kSlotsAtOnce % 8 == 0, "the swizzle repeats");

  // All threads, each half a chunk of codes at a time, and of 4 bits the upper or the lower halves
  // of its bytes. Addresses are shared ones. kHeadDim: columns that share a scale.
  template <int kHeadDim>
  __device__ __forceinline__ static void Widen(uint32_t codes, uint32_t scales, uint32_t image) {
#pragma unroll
    for (uint32_t pass = 0; pass < kPasses * kChunks / kTileChunks; ++pass) {
      const uint32_t tile = pass / kPasses;
      const auto thread = static_cast<uint32_t>(ThreadAgain());
      const uint32_t slot = thread / 2 / kTileChunks;
      const uint32_t chunk = tile * kTileChunks + (thread / 2 ^ thread / 16) % kTileChunks;
      const uint32_t upper = kPasses == 1 ? 0 : (pass ^ (kTileChunks == 2 ? slot : chunk / 2)) % 2;
      const uint32_t to = chunk * (kNumbers / 8) + thread % 2 + 2 * upper;  // chunk of the image
      uint32_t from = codes + tile * kTileBytes + thread * 8;
      const uint32_t end = codes + (tile + 1) * kTileBytes;
      uint32_t scale = scales + chunk * kNumbers / kHeadDim * kScaleBytes + slot * 4;
      uint32_t at = image + to / 8 * kImageTileBytes + slot * kImageRowBytes +
                    (to % 8 ^ slot % 8) * kChunkBytes;
#pragma unroll 1
      for (; from < end; from += kWarpgroupThreads * 8) {
        uint32_t words[2];
        LoadShared2(words, from);
        const Widener widener = Widener::Of(LoadShared(scale));
        uint32_t pairs[4];
        widener.Widen(pairs, words[0] >> 4 * upper, words[1] >> 4 * upper);
        StoreShared4(at, pairs);
        scale += kSlotsAtOnce * 4;
        at += kSlotsAtOnce * kImageRowBytes;
      }
    }
  }
};

// A walk over the pages of a tile: the copies of the next ones are issued before one is widened.
template <typename Shape, bool kKAlone>
struct CodeWalk {
  using Codec = typename Shape::Codec;
  using K = CodeMatrix<Codec, false, Shape::kHeadDim>;
  using V = CodeMatrix<Codec, true, Shape::kVDim>;
  static constexpr uint32_t kKBytes = Shape::kKMaps * K::kBytes;
  static constexpr uint32_t kScaleBegin = static_cast<uint32_t>(Shape::kPage.ScaleBegin());
  static constexpr uint32_t kKScaleBytes = Shape::kKMaps * kImagePageSize * sizeof(float);
  static_assert(Shape::kVDim / Shape::kHeadDim * kImagePageSize <= kWarpgroupThreads);

  const AttentionLaunch& call;
  const PageRing<Shape>& ring;
  int group;
  int page;  // index of the next page in PagedBatch::pages
  // From its first slot on: those of its V that a row attends to. The end is also where the walk
  // ends, if it is at most a page further.
  int begin;
  int end;

  // Called by the warp that fetches. Brings the page that is `ahead` of the next.
  __device__ __forceinline__ void Fetch(int ahead, int stage) const {
    if (end <= ahead * kImagePageSize) return;
    const int32_t id = call.batch.pages[page + ahead];
    if (!ElectedLane()) return;
    const auto* source = reinterpret_cast<const std::byte*>(ImagePage<Shape>(call.kv, id, group));
    const uint32_t to = ring.Codes(stage);
    const uint32_t barrier = ring.CodesFull(stage);
    if constexpr (kKAlone) {
      BarrierArriveExpect(barrier, kKBytes + kKScaleBytes);
      BulkCopy(to, source, kKBytes, barrier);
      BulkCopy(to + kScaleBegin, source + kScaleBegin, kKScaleBytes, barrier);
    } else {
      BarrierArriveExpect(barrier, Shape::kCodeBytes);
      BulkCopy(to, source, Shape::kCodeBytes, barrier);
    }
  }

  // Called by all threads, of which each orders what it has written before wgmma.
  __device__ __forceinline__ void Arrive(uint32_t barrier) const {
    ProxyFence();
    __syncwarp();
    if (ElectedLane()) BarrierArrive(barrier);
  }
  // Zeroes V's scales in slots that no row attends to: a weight of 0 does not hide a NaN there.
  __device__ __forceinline__ void ClearV(uint32_t v_scales) const {
    const int thread = ThreadAgain();
    const int slot = thread % kImagePageSize;
    const int part = thread / kImagePageSize;
    if (part < Shape::kVDim / Shape::kHeadDim && (slot < begin || slot >= end))
      StoreShared(v_scales + static_cast<uint32_t>(thread) * sizeof(float), 0.0f);
    ProxyFence();  // a later page's copy overwrites what was cleared
    NamedBarrier(kCodesCleared, kWarpgroupThreads);
  }
  __device__ __forceinline__ void WidenPage(int codes_stage, int stage) const {
    const uint32_t codes = ring.Codes(codes_stage);
    const uint32_t image = ring.K(stage);
#pragma unroll 1
    for (uint32_t map = 0; map < Shape::kKMaps; ++map) {
      K::template Widen<Shape::kHeadDim>(codes + map * K::kBytes,
                                         codes + kScaleBegin + map * K::kScaleBytes,
                                         image + map * Shape::kKMapBytes);
    }
    Arrive(ring.KFull(stage));
    if constexpr (!kKAlone) {
      if (begin > 0 || end < kImagePageSize) ClearV(codes + kScaleBegin + kKScaleBytes);
      V::template Widen<Shape::kHeadDim>(codes + kKBytes, codes + kScaleBegin + kKScaleBytes,
                                         image + Shape::kKBytes);
    }
    Arrive(ring.VFull(stage));
  }

  // `num_codes`: pages of codes so far. The n-th lies in stage n % kCodeStages.
  __device__ __forceinline__ void Run(RingPosition& at, uint32_t& num_codes, bool fetches) {
    for (int ahead = 0; ahead < kCodeStages && fetches; ++ahead)
      Fetch(ahead, static_cast<int>(num_codes + ahead) % kCodeStages);
    for (; end > 0; end -= kImagePageSize, begin -= kImagePageSize) {
      const int stage = static_cast<int>(num_codes % kCodeStages);
      BarrierWait(ring.Empty(at.stage), at.parity ^ 1);
      BarrierWait(ring.CodesFull(stage), num_codes / kCodeStages % 2);
      __syncwarp();
      WidenPage(stage, at.stage);
      NamedBarrier(kCodesRead, kWarpgroupThreads);
      if (fetches) Fetch(kCodeStages, stage);
      ++page;
      ++num_codes;
      at.Advance(ring.num_stages);
    }
  }
};

template <typename Shape, bool kKAlone>
__device__ __forceinline__ CodeWalk<Shape, kKAlone> CodeWalkOf(const AttentionLaunch& call,
                                                               const PageRing<Shape>& ring,
                                                               const PrefillWork& work) {
  const QueryTile tile = PrefillTileOf(call, work);
  return {call,
          ring,
          tile.group,
          tile.sequence.first_page + tile.first_slot / kImagePageSize,
          UnmaskedSlots::Of(call, tile).first_of_any - tile.first_slot,
          tile.end_slot - tile.first_slot};
}

template <typename Shape, bool kQuantised>
__device__ __forceinline__ void WidenPages(const AttentionLaunch& call, const PageRing<Shape>& ring,
                                           bool fetches) {
  RingPosition at;
  uint32_t num_codes = 0;
  for (int turn = 0;; ++turn) {
    const PrefillWork work = PrefillWorkOf(call, turn);
    if (work.item < 0) return;
    if constexpr (kQuantised) {
      if (call.logits.needs_row())
        CodeWalkOf<Shape, true>(call, ring, work).Run(at, num_codes, fetches);
    }
    CodeWalkOf<Shape, false>(call, ring, work).Run(at, num_codes, fetches);
  }
}

}  // namespace diffserve::cuda
