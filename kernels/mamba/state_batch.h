// A batch of sequences that remember their past in a state of fixed size, in place of pages: which
// rows of the batch each has, and which slots of a state buffer hold what it remembers. Plain data,
// in the memory of the backend that reads it, and passed to kernels by value.
//
// A slot is one plain array of floats, so copying it with memcpy, in or out of a device too, takes
// the sequence back to where it was. A snapshot needs no copy at all: a step that reads one slot
// and writes another leaves the first as it is, for whoever begins there later.
#pragma once

#include <cstdint>

namespace diffserve {

inline constexpr int32_t kNoState = -1;

// What one sequence contributes to a batch: rows [first_row, first_row + num_tokens) of its
// activations, in the order of its tokens.
struct StateSequence {
  int32_t first_row;
  int32_t num_tokens;  // 0: its slots are neither read nor written
  int32_t from;        // the slot of its state before these tokens; kNoState: it begins, with zeros
  int32_t to;          // the slot that its state after them goes to; may be `from`
};

// REQUIRES: no slot is `to` of two sequences, or `to` of one and `from` of another.
struct StateBatch {
  const StateSequence* sequences = nullptr;  // [num_sequences]
  int num_sequences = 0;
  int num_tokens = 0;      // of all sequences
  int num_tokens_max = 0;  // no sequence has more; 0: not told
};

// Slot i is data[i * stride, ...). A stride beyond what an operation keeps there leaves room for
// the states of other layers beside it, so that one copy takes all that a sequence remembers.
struct StateSlots {
  float* data = nullptr;
  int64_t stride = 0;  // in floats
};

}  // namespace diffserve
