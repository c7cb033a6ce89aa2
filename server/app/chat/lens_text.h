// SPDX-License-Identifier: Apache-2.0
// The output of /lens in a chat: where one head looked when a token was written, as small bars.
// Pure functions.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/status.h"

namespace diffserve {

// A slot that the query saw: its probability in both maps, and map1 - lambda map2.
struct LensSlot {
  int slot = 0;
  float map1 = 0, map2 = 0, difference = 0;
};

struct LensHead {
  int layer = 0, head = 0;
  float lambda = 0;
  float entropy1 = 0;   // of map 1, in nats
  float cancelled = 0;  // share of map 1's mass that map 2 removes
  std::vector<LensSlot> slots;
};

// Where all heads looked from the token before the last one.
struct LensAnswer {
  int num_maps = 0, num_layers = 0, num_heads = 0;  // the model's
  std::vector<std::string> token_texts;             // the last one is the token that was written
  std::vector<LensHead> heads;
};

// Lines for a terminal: the head that cancels most (for plain attention the one that looks at the
// fewest slots), and its slots with the largest differences, except those too small to show.
// `number`: the index of the written token in the answer, from 1. Error: kUnavailable if the answer
// is inconsistent, as that of another server may be.
Result<std::string> LensText(const LensAnswer& answer, int number);

}  // namespace diffserve
