// SPDX-License-Identifier: Apache-2.0
// Which slots the queries of a task see, by ranges, and which queries see slots of V jointly. Only
// *.isa.cc files include this.
#pragma once

#include "kernels/attention/diff_attention_tiles.h"
#include "kernels/base/simd.h"

namespace diffserve::DS_ISA {

// Queries are sorted by token within a map, so neither bound falls from one to the next.
struct SeenSlots {
  int* first;  // [queries], the first slot that each sees
  int* end;    // [queries], one past the last

  // First and end of a query's slots, counted from the range's first. It sees no slot of the range
  // if the first is kRange or more, or the end is 0 or less.
  int First(int range, int query) const { return MaxInt(0, first[query] - range * kRange); }
  int End(int range, int query) const { return MinInt(kRange, end[query] - range * kRange); }
  bool SeesAny(int range, int query) const { return First(range, query) < End(range, query); }

  int FirstRange(int query) const { return first[query] / kRange; }
  int EndRange(int query) const { return (end[query] + kRange - 1) / kRange; }
};

// Slots [begin, end) of a range, whose values are read by packs, for outputs [first_output,
// end_output). An output that sees half of a pack of floats takes only that slot. A pack of
// integers is taken whole, as the weights of slots that the output does not see are 0.
template <typename Codec>
struct SeenPacks {
  static constexpr int kPack = Codec::Description().v_pack;
  static constexpr bool kHasLoneSlots = kPack > 1 && !kHasScales<Codec>;
  static_assert(!kHasLoneSlots || kPack == 2);

  const SeenSlots& seen;
  int range;
  int begin;
  int end;
  int first_output;
  int end_output;

  // Calls add(output, count, first, end) for the whole packs that each output sees, ascending;
  // consecutive outputs are grouped for as long as all of them see the packs.
  template <typename Add>
  [[gnu::always_inline]] void ForEachRun(Add add) const {
    if (IsInside()) return add(first_output, end_output - first_output, begin, end);
    int output = first_output;  // the first that has not yet seen all it sees
    int last = first_output;    // the first that does not see `slot` yet
    for (int slot = begin;;) {
      while (output < end_output && End(output) <= slot) ++output;
      if (output == end_output) return;
      last = MaxInt(last, output);
      while (last < end_output && First(last) <= slot) ++last;
      const int next = MinInt(End(output), last < end_output ? First(last) : kRange);
      if (last > output) add(output, last - output, slot, next);
      slot = next;
    }
  }
  // Calls add(output, count, slot) where slot is the first that `count` outputs see, and they do
  // not see the one before it in its pack.
  template <typename Add>
  [[gnu::always_inline]] void ForEachLoneFirst(Add add) const {
    if (IsInside()) return;
    ForEachLone(add, [&](int output) {
      const int slot = seen.First(range, output);
      const bool is_here = slot >= begin && slot < MinInt(end, seen.End(range, output));
      return is_here && slot % 2 == 1 ? slot : -1;
    });
  }
  // The same where slot is the last that they see, and they do not see the one after it in its
  // pack.
  template <typename Add>
  [[gnu::always_inline]] void ForEachLoneLast(Add add) const {
    if (IsInside()) return;
    ForEachLone(add, [&](int output) {
      const int slot = seen.End(range, output) - 1;
      const bool is_here = slot >= MaxInt(begin, seen.First(range, output)) && slot < end;
      return is_here && slot % 2 == 0 ? slot : -1;
    });
  }

 private:
  // Whether all outputs see all slots.
  bool IsInside() const {
    return seen.First(range, end_output - 1) <= begin && seen.End(range, first_output) >= end &&
           end % kPack == 0;
  }
  // An output sees the whole packs from First to End.
  int First(int output) const {
    constexpr int kAdded = kHasLoneSlots ? kPack - 1 : 0;
    return (MaxInt(begin, seen.First(range, output)) + kAdded) / kPack * kPack;
  }
  int End(int output) const {
    constexpr int kAdded = kHasLoneSlots ? 0 : kPack - 1;
    return (MinInt(end, seen.End(range, output)) + kAdded) / kPack * kPack;
  }
  template <typename Add, typename SlotOf>
  [[gnu::always_inline]] void ForEachLone(Add add, SlotOf slot_of) const {
    for (int output = first_output, next; output < end_output; output = next) {
      const int slot = slot_of(output);
      for (next = output + 1; next < end_output && slot_of(next) == slot;) ++next;
      if (slot >= 0) add(output, next - output, slot);
    }
  }
};

}  // namespace diffserve::DS_ISA
