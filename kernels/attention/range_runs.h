// SPDX-License-Identifier: Apache-2.0
// Addresses of the numbers of K or V and of their scales, by ranges of a sequence's slots. Only
// *.isa.cc files include this.
#pragma once

#include "kernels/attention/diff_attention_kernel.h"
#include "kernels/attention/diff_attention_tiles.h"

namespace diffserve::DS_ISA {

constexpr int kStepRuns = kStep / kRun;
constexpr int kRangeRuns = kRange / kRun;

// A run of a task's slots.
struct RunCursor {
  RunCursor(const AttentionTask& of, int page_slots, int first)
      : task(of),
        page_size(page_slots),
        slot(first),
        page_id(of.pages + first / page_slots),
        in_page(first % page_slots) {}

  bool IsLast() const { return slot + kRun >= task.num_slots(); }
  void Next() {
    slot += kRun;
    in_page += kRun;
    if (in_page < page_size) return;
    in_page = 0;
    ++page_id;
  }

  const AttentionTask& task;
  const int page_size;
  int slot;  // the run's first
  const int32_t* page_id;
  int in_page;
};

// Runs that are read after those of a sequence, to prefetch; nullptr: none.
struct RunsAhead {
  const std::byte* numbers[kStepRuns] = {};
};

// Runs of a range, and of the next one, which are prefetched. Before the task's first run that run
// is repeated. The sequence's last is followed by the runs ahead, or is repeated.
template <typename Codec>
class RangeRuns {
  // Offsets in a page of a run's first number, by the run's first slot.
  static int64_t KOffset(int slot) { return slot * KBytes<Codec>(Codec::Description().k_pack); }
  auto VOffsets() const {
    const int64_t begin = VBytes<Codec>(kv_.format.VBegin());
    const int64_t run_bytes = VBytes<Codec>(kRun * kv_.format.v_dim);
    return [=](int slot) { return begin + slot / kRun * run_bytes; };
  }

 public:
  RangeRuns(const PagedKv& kv, const AttentionTask& task)
      : kv_(kv),
        task_(task),
        first_page_(kv.Page(0, task.group)),
        page_stride_(kv.Page(1, task.group) - first_page_),
        scale_begin_(kv.format.ScaleBegin()) {}

  // K of map 1. Prefetches the next range's scales of both maps.
  void LocateK(int range, const RunsAhead& ahead) {
    Locate(range, &KOffset, 0, kv_.format.k_maps, ahead);
  }
  // Column 0 of V. Prefetches the next range's scales of all parts.
  void LocateV(int range, const RunsAhead& ahead) {
    const KvFormat& format = kv_.format;
    Locate(range, VOffsets(), format.k_maps * format.page_size, format.v_dim / format.head_dim,
           ahead);
  }
  // The first runs of a task's K, and of its V.
  RunsAhead FirstOfK(const AttentionTask& task) const { return FirstOf(task, &KOffset); }
  RunsAhead FirstOfV(const AttentionTask& task) const { return FirstOf(task, VOffsets()); }

  // Address of each run's first slot, up to kStepRuns runs after the sequence's last.
  const std::byte* const* numbers() const { return numbers_; }
  // Scales of each run's first slot, in the first of its page's lists. KvFormat::KScale and VScale
  // of slot 0 count from there.
  const float* const* scales() const { return scales_; }

 private:
  template <typename OffsetOf>
  RunsAhead FirstOf(const AttentionTask& task, OffsetOf offset_of) const {
    RunsAhead runs;
    RunCursor at(task, kv_.format.page_size, task.first_slot / kRun * kRun);
    for (const std::byte*& run : runs.numbers) {
      run = kv_.Page(*at.page_id, task.group) + offset_of(at.in_page);
      if (!at.IsLast()) at.Next();
    }
    return runs;
  }

  template <typename OffsetOf>
  void Locate(int range, OffsetOf offset_of, int first_scale, int lists, const RunsAhead& ahead) {
    const int begin = range * kRange;
    RunCursor at(task_, kv_.format.page_size, MaxInt(begin, task_.first_slot / kRun * kRun));
    int run = 0;
    for (bool is_last = false; run < 2 * kRangeRuns && !is_last; ++run) {
      const std::byte* page = first_page_ + *at.page_id * page_stride_;
      numbers_[run] = page + offset_of(at.in_page);
      if constexpr (kHasScales<Codec>) {
        scales_[run] = reinterpret_cast<const float*>(page + scale_begin_) + at.in_page;
        for (int list = 0; run >= kRangeRuns && list < lists; ++list)
          __builtin_prefetch(scales_[run] + first_scale + list * at.page_size, 0, kIntoL2);
      }
      if (begin + run * kRun < at.slot) continue;
      is_last = at.IsLast();
      if (!is_last) at.Next();
    }
    for (const std::byte* next : ahead.numbers) {
      if (run == 2 * kRangeRuns) return;
      numbers_[run] = next != nullptr ? next : numbers_[run - 1];
      ++run;
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
