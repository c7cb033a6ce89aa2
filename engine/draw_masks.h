// DrawMasks: the tokens that each draw of a step may take, which are those that the sequence's
// constraint, its allowed tokens, its bad words and its min_tokens leave. Where tokens are
// proposed, the constraint is taken through them, a mask for each, and back to where it was. Owned
// by an executor and used on the engine thread; the pool's workers fill masks while it waits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/step_plan.h"
#include "kernels/base/status.h"

namespace diffserve {

class ThreadPool;

class DrawMasks {
 public:
  // Of one planned sequence.
  struct Entry {
    int32_t first = -1;  // the mask of its first draw, before those of its others; -1: no masks
    int num_draws = 0;   // leading ones that may be made: what is drawn behind them means nothing
    Status error;        // if there are none: why no token may be drawn
  };

  // `pool`: fills the masks of several constraints at once; nullptr: they are filled in order.
  explicit DrawMasks(int vocab_size, ThreadPool* pool = nullptr)
      : vocab_size_(vocab_size), pool_(pool) {}

  // Replaces what the last call gave.
  void Fill(const StepPlan& plan);
  const std::vector<Entry>& entries() const { return entries_; }  // in the plan's order
  // [masks, MaskWords(vocab_size)]. May be moved from and back: its memory is used again.
  std::vector<uint32_t>& words() { return words_; }

 private:
  void FillOne(const PlannedSequence& planned, Entry& entry);
  Status FillDraw(const PlannedSequence& planned, int position, std::span<uint32_t> mask) const;
  std::span<uint32_t> MaskOf(const Entry& entry, int draw);

  const int vocab_size_;
  ThreadPool* const pool_;
  std::vector<Entry> entries_;
  std::vector<size_t> masked_;  // of entries_, those with masks
  std::vector<uint32_t> words_;
};

}  // namespace diffserve
