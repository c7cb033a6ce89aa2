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

// Runs of a range, and of the next one, which are prefetched. Before the task's first run that run
// is repeated. The sequence's last is followed by what is read next, if that is known.
template <typename Codec>
class RangeRuns {
 public:
  RangeRuns(const PagedKv& kv, const AttentionTask& task)
      : kv_(kv),
        task_(task),
        first_page_(kv.Page(0, task.group)),
        page_stride_(kv.Page(1, task.group) - first_page_),
        scale_begin_(kv.format.ScaleBegin()) {}

  // K of map 1, followed by the task's V if the task reads it too. Prefetches the next range's
  // scales of both maps.
  void LocateK(int range) {
    Locate(range, &KOffset, 0, kv_.format.k_maps);
    AddRunsAhead(&task_, VOffsets());
  }
  // Column 0 of V, followed by the K of the task that is next. Prefetches the next range's scales
  // of all parts.
  void LocateV(int range, const AttentionTask* following) {
    const KvFormat& format = kv_.format;
    Locate(range, VOffsets(), format.k_maps * format.page_size, format.v_dim / format.head_dim);
    AddRunsAhead(following, &KOffset);
  }

  // Address of each run's first slot, up to kStepRuns runs after the sequence's last.
  const std::byte* const* numbers() const { return numbers_; }
  // Scales of each run's first slot, in the first of its page's lists. KvFormat::KScale and VScale
  // of slot 0 count from there.
  const float* const* scales() const { return scales_; }

 private:
  // Offsets in a page of a run's first number, by the run's first slot.
  static int64_t KOffset(int slot) { return slot * KBytes<Codec>(Codec::Description().k_pack); }
  auto VOffsets() const {
    const int64_t begin = VBytes<Codec>(kv_.format.VBegin());
    const int64_t run_bytes = VBytes<Codec>(kRun * kv_.format.v_dim);
    return [=](int slot) { return begin + slot / kRun * run_bytes; };
  }

  // Sets located_ to the number of runs up to the sequence's last.
  template <typename OffsetOf>
  void Locate(int range, OffsetOf offset_of, int first_scale, int lists) {
    const int begin = range * kRange;
    RunCursor at(task_, kv_.format.page_size, MaxInt(begin, task_.first_slot / kRun * kRun));
    bool is_last = false;
    for (located_ = 0; located_ < 2 * kRangeRuns && !is_last; ++located_) {
      const std::byte* page = first_page_ + *at.page_id * page_stride_;
      numbers_[located_] = page + offset_of(at.in_page);
      if constexpr (kHasScales<Codec>) {
        scales_[located_] = reinterpret_cast<const float*>(page + scale_begin_) + at.in_page;
        for (int list = 0; located_ >= kRangeRuns && list < lists; ++list)
          __builtin_prefetch(scales_[located_] + first_scale + list * at.page_size, 0, kIntoL2);
      }
      if (begin + located_ * kRun < at.slot) continue;
      is_last = at.IsLast();
      if (!is_last) at.Next();
    }
  }

  // Adds the first runs of a task, or repeats the last if it is nullptr or reads only a part.
  template <typename OffsetOf>
  void AddRunsAhead(const AttentionTask* task, OffsetOf offset_of) {
    const int end = MinInt(located_ + kStepRuns, 2 * kRangeRuns);
    if (task == nullptr || task->pass != AttentionTask::Pass::kAll) {
      for (int run = located_; run < end; ++run) numbers_[run] = numbers_[located_ - 1];
      return;
    }
    RunCursor at(*task, kv_.format.page_size, task->first_slot / kRun * kRun);
    for (int run = located_; run < end; ++run) {
      numbers_[run] = kv_.Page(*at.page_id, task->group) + offset_of(at.in_page);
      if (!at.IsLast()) at.Next();
    }
  }

  const PagedKv& kv_;
  const AttentionTask& task_;
  const std::byte* const first_page_;
  const int64_t page_stride_;
  const int64_t scale_begin_;
  int located_ = 0;
  const std::byte* numbers_[2 * kRangeRuns];
  const float* scales_[2 * kRangeRuns];
};

}  // namespace diffserve::DS_ISA
