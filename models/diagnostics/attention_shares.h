// SPDX-License-Identifier: Apache-2.0
// Figures of one query's attention maps. p1 and p2 are the softmaxes of its maps over the slots
// that it sees; difference = p1 - lambda p2 are the weights that V is multiplied by.
//   entropy    -sum p ln p of a map, in nats
//   cancelled  the sum of min(p1, max(lambda p2, 0)): the share of map 1's mass that the difference
//              removes; 0 for plain attention
//   on span    the sums of p1 and of p2 over some slots, and of |difference| as a share of its
//              sum over all slots
// Pure functions.
#pragma once

#include <vector>

#include "kernels/attention/attention_maps.h"

namespace diffserve {

double Entropy(const std::vector<double>& p);
double CancelledShare(const AttentionMaps& maps);

struct SpanShares {
  double map1 = 0;
  double map2 = 0;        // 0 with one map
  double difference = 0;  // 0 if the difference is 0 everywhere
};
// Shares of the slots [begin, end) that the query sees.
SpanShares SharesOn(const AttentionMaps& maps, int begin, int end);

}  // namespace diffserve
