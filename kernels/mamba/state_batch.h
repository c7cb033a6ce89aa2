// SPDX-License-Identifier: Apache-2.0
// A batch of sequences that keep their past in a state of fixed size instead of pages: the rows of
// each sequence, and the slots of a state buffer that hold its state. Plain data, in the memory of
// the backend that reads it, passed to kernels by value.
//
// A slot is one plain array of floats. Copying it with memcpy, also to or from a device, restores
// the sequence to that point. A snapshot needs no copy at all: a step that reads one slot and
// writes another leaves the first unchanged for sequences that start from it later.
#pragma once

#include <cstdint>

namespace diffserve {

inline constexpr int32_t kNoState = -1;

// What one sequence contributes to a batch: rows [first_row, first_row + num_tokens) of its
// activations, in token order.
struct StateSequence {
  int32_t first_row;
  int32_t num_tokens;  // 0: its slots are neither read nor written
  int32_t from;  // the slot of its state before these tokens; kNoState: a new sequence, with zeros
  int32_t to;    // the slot of its state after them; may be `from`
};

// REQUIRES: no slot is `to` of two sequences, or `to` of one and `from` of another.
struct StateBatch {
  const StateSequence* sequences = nullptr;  // [num_sequences]
  int num_sequences = 0;
  int num_tokens = 0;      // of all sequences
  int num_tokens_max = 0;  // maximum tokens per sequence; 0: unknown
};

// Slot i is data[i * stride, ...). A stride larger than one operation's state leaves room for the
// states of other layers, so that one copy takes all of a sequence's state.
struct StateSlots {
  float* data = nullptr;
  int64_t stride = 0;  // in floats
};

}  // namespace diffserve
