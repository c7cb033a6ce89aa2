// The attention maps of one query, a token and signal head, over the slots that it sees: what
// DiffAttentionRef multiplies V by, for whoever wants to look inside. Kernels never hold a whole
// map.
#pragma once

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

// Naive, double precision, one thread. Of `args` what is about V and the output is not looked at.
// `row` counts from the first of the sequence's in the batch. Pages of any format.
AttentionMaps AttentionMapsRef(const DiffAttentionArgs<float>& args, const SequenceTokens& sequence,
                               int row, int head);

}  // namespace diffserve
