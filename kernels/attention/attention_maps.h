// The attention maps of one query, a token and signal head, over the slots up to its own: what
// DiffAttentionRef multiplies V by, for whoever wants to look inside. Kernels never hold a whole
// map. At a slot before its window a logit is -infinity, and p and w are 0.
#pragma once

#include <array>
#include <vector>

#include "kernels/attention/diff_attention.h"

namespace diffserve {

struct AttentionMap {
  std::vector<double> logits;  // [slots], scaled, and quantised where the arguments say so
  std::vector<double> p;       // [slots], their softmax
};

struct AttentionMaps {
  AttentionMap first;
  AttentionMap second;  // empty for plain attention
  double lambda = 0;
  std::vector<double> w;  // [slots], p1 - lambda p2
};

// K of one group of a sequence, decoded once for all queries that read it: [k_maps] of
// [slots][head_dim] from `first_slot` on, in double precision.
struct GroupKeys {
  int group = 0;
  int first_slot = 0;
  std::array<std::vector<double>, 2> rows;
};
// Of the slots that some row of the sequence's in the batch sees.
GroupKeys GroupKeysRef(const DiffAttentionArgs<float>& args, const SequenceTokens& sequence,
                       int group);

// Which group's K a signal head reads.
inline int GroupOf(const DiffSpec& spec, int head) {
  return head / (spec.num_q1_heads / spec.num_kv_groups);
}

// Naive, double precision, one thread. Of `args` what is about V and the output is not looked at.
// `row` counts from the first of the sequence's in the batch. Pages of any format.
AttentionMaps AttentionMapsRef(const DiffAttentionArgs<float>& args, const SequenceTokens& sequence,
                               int row, int head);
// The same with `keys` of the head's group, of the slots that the query sees or more.
AttentionMaps AttentionMapsRef(const DiffAttentionArgs<float>& args, const SequenceTokens& sequence,
                               int row, int head, const GroupKeys& keys);

}  // namespace diffserve
