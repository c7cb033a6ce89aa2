// SPDX-License-Identifier: Apache-2.0
// The attention maps of one query (a token and signal head) over the slots up to its own, for
// diagnostics: the weights by which DiffAttentionRef multiplies V. Kernels never hold a whole map.
// At a slot before the query's window the logit is -infinity, and p and w are 0.
#pragma once

#include <array>
#include <vector>

#include "kernels/attention/diff_attention.h"

namespace diffserve {

struct AttentionMap {
  std::vector<double> logits;  // [slots], scaled, and quantised if the arguments ask for it
  std::vector<double> p;       // [slots], softmax of the logits
};

struct AttentionMaps {
  AttentionMap first;
  AttentionMap second;  // empty for plain attention
  double lambda = 0;
  std::vector<double> w;  // [slots], p1 - lambda p2
};

// K of one group of a sequence, decoded once for all queries that read it: k_maps arrays
// [slots][head_dim] in double precision. Slots count from `first_slot`.
struct GroupKeys {
  int group = 0;
  int first_slot = 0;
  std::array<std::vector<double>, 2> rows;
};
// Decodes the slots that any of the sequence's rows in the batch sees.
GroupKeys GroupKeysRef(const DiffAttentionArgs<float>& args, const SequenceTokens& sequence,
                       int group);
// V of the same slots, [slots][v_dim].
std::vector<double> GroupValuesRef(const DiffAttentionArgs<float>& args,
                                   const SequenceTokens& sequence, int group);

// The group whose K a signal head reads.
inline int GroupOf(const DiffSpec& spec, int head) {
  return head / (spec.num_q1_heads / spec.num_kv_groups);
}

// Naive, double precision, one thread. Ignores the members of `args` about V and the output. `row`
// counts from the sequence's first row in the batch. Takes pages of any format.
AttentionMaps AttentionMapsRef(const DiffAttentionArgs<float>& args, const SequenceTokens& sequence,
                               int row, int head);
// As above, with `keys` of the head's group, which hold at least the slots that the query sees.
AttentionMaps AttentionMapsRef(const DiffAttentionArgs<float>& args, const SequenceTokens& sequence,
                               int row, int head, const GroupKeys& keys);

}  // namespace diffserve
