// SPDX-License-Identifier: Apache-2.0
// Addresses of the numbers of K or V and of their scales, by ranges of a sequence's slots. Only
// *.isa.cc files include this.
#pragma once

#include "kernels/attention/diff_attention_kernel.h"
#include "kernels/attention/diff_attention_tiles.h"

namespace diffserve::DS_ISA {

constexpr int kStepRuns = kStep / kRun;
constexpr int kRangeRuns = kRange / kRun;

// Runs of a range, and of the next one, which are prefetched. Before the task's first run and after
// the sequence's last, that run is repeated.
template <typename Codec>
class RangeRuns {
 public:
  RangeRuns(const PagedKv& kv, const AttentionTask& task)
      : kv_(kv),
        task_(task),
        first_page_(kv.Page(0, task.group)),
        page_stride_(kv.Page(1, task.group) - first_page_),
        scale_begin_(kv.format.ScaleBegin()) {}

  // K of map 1. Prefetches the next range's scales of both maps.
  void LocateK(int range) {
    constexpr int64_t kSlotBytes = KBytes<Codec>(Codec::Description().k_pack);
    const auto offset_of = [](int slot) { return slot * kSlotBytes; };
    Locate(range, offset_of, 0, kv_.format.k_maps);
  }
  // Column 0 of V. Prefetches the next range's scales of all parts.
  void LocateV(int range) {
    const KvFormat& format = kv_.format;
    const int64_t begin = VBytes<Codec>(format.VBegin());
    const int64_t run_bytes = VBytes<Codec>(kRun * format.v_dim);
    const auto offset_of = [=](int slot) { return begin + slot / kRun * run_bytes; };
    Locate(range, offset_of, format.k_maps * format.page_size, format.v_dim / format.head_dim);
  }

  // Address of each run's first slot.
  const std::byte* const* numbers() const { return numbers_; }
  // Scales of each run's first slot, in the first of its page's lists. KvFormat::KScale and VScale
  // of slot 0 count from there.
  const float* const* scales() const { return scales_; }

 private:
  template <typename OffsetOf>
  void Locate(int range, OffsetOf offset_of, int first_scale, int lists) {
    const int page_size = kv_.format.page_size;
    const int begin = range * kRange;
    int slot = MaxInt(begin, task_.first_slot / kRun * kRun);
    const int32_t* page_id = task_.pages + slot / page_size;
    int in_page = slot % page_size;
    for (int run = 0; run < 2 * kRangeRuns; ++run) {
      const std::byte* page = first_page_ + *page_id * page_stride_;
      numbers_[run] = page + offset_of(in_page);
      if constexpr (kHasScales<Codec>) {
        scales_[run] = reinterpret_cast<const float*>(page + scale_begin_) + in_page;
        for (int list = 0; run >= kRangeRuns && list < lists; ++list)
          __builtin_prefetch(scales_[run] + first_scale + list * page_size, 0, kIntoL2);
      }
      if (slot + kRun >= task_.num_slots() || begin + run * kRun < slot) continue;
      slot += kRun;
      in_page += kRun;
      if (in_page < page_size) continue;
      in_page = 0;
      ++page_id;
    }
  }

  const PagedKv& kv_;
  const AttentionTask& task_;
  const std::byte* const first_page_;
  const int64_t page_stride_;
  const int64_t scale_begin_;
  const std::byte* numbers_[2 * kRangeRuns];
  const float* scales_[2 * kRangeRuns];
};

}  // namespace diffserve::DS_ISA
