// SPDX-License-Identifier: Apache-2.0
// DrawMasks: which tokens each draw of a step may take. A token is allowed if the sequence's
// constraint, allowed tokens, bad words and min_tokens all allow it. With proposed tokens, a copy
// of the constraint goes through them, filling one mask per draw. Owned by an executor and used on
// the engine thread; the pool's workers fill masks while it waits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/policy/step_plan.h"
#include "kernels/base/status.h"

namespace diffserve {

class ThreadPool;
class TokenConstraint;

class DrawMasks {
 public:
  // The masks of one planned sequence.
  struct Entry {
    int32_t first = -1;  // index of the first draw's mask; the other draws' masks follow it. -1: no
                         // masks
    int num_draws = 0;   // leading draws that may be made; later draws are meaningless
    Status error;        // if num_draws is 0: why no token may be drawn
  };

  // `pool` fills the masks of several constraints in parallel; nullptr: they are filled in order.
  explicit DrawMasks(int vocab_size, ThreadPool* pool = nullptr)
      : vocab_size_(vocab_size), pool_(pool) {}

  // Computes the masks for `plan` and replaces those of the last call.
  void Fill(const StepPlan& plan);
  const std::vector<Entry>& entries() const { return entries_; }  // in the plan's order
  // [masks, MaskWords(vocab_size)]. A caller may move it out and back, so that its memory is
  // reused.
  std::vector<uint32_t>& words() { return words_; }

 private:
  void FillOne(const PlannedSequence& planned, Entry& entry);
  Status FillDraw(const PlannedSequence& planned, TokenConstraint* constraint, int position,
                  std::span<uint32_t> mask) const;
  std::span<uint32_t> MaskOf(const Entry& entry, int draw);

  const int vocab_size_;
  ThreadPool* const pool_;
  std::vector<Entry> entries_;
  std::vector<size_t> masked_;  // indices into entries_ that have masks
  std::vector<uint32_t> words_;
};

}  // namespace diffserve
