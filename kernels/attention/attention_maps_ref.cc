// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention/attention_maps.h"
#include "kernels/attention/attention_window.h"
#include "kernels/process/check.h"

namespace diffserve {
namespace {

// softmax(q K^T * scale) over slots first .. position; the keys' map `k_map` has a row for each.
AttentionMap MapOf(const DiffAttentionArgs<float>& args, int first, int position,
                   const GroupKeys& keys, int k_map, const float* q) {
  const auto head_dim = static_cast<size_t>(args.spec.head_dim);
  AttentionMap map;
  map.logits.resize(static_cast<size_t>(first), -std::numeric_limits<double>::infinity());
  map.p.resize(map.logits.size());
  const double* k = keys.rows[static_cast<size_t>(k_map)].data() +
                    static_cast<size_t>(first - keys.first_slot) * head_dim;
  for (int slot = first; slot <= position; ++slot, k += head_dim) {
    double score = 0;
    for (size_t d = 0; d < head_dim; ++d) score += static_cast<double>(q[d]) * k[d];
    map.logits.push_back(score * static_cast<double>(args.scale));
  }
  const std::span<double> seen = std::span(map.logits).subspan(static_cast<size_t>(first));
  QuantiseLogitsRef(seen, args.logit_quant, first);
  const double max = *std::ranges::max_element(seen);
  double sum = 0;
  for (double logit : seen) sum += map.p.emplace_back(std::exp(logit - max));
  for (double& value : map.p) value /= sum;
  return map;
}

}  // namespace

GroupKeys GroupKeysRef(const DiffAttentionArgs<float>& args, const SequenceTokens& sequence,
                       int group) {
  const KvFormat& format = args.kv.format;
  GroupKeys keys;
  keys.group = group;
  keys.first_slot = FirstSlotSeen(sequence.position, WindowSlots(args.window));
  const int end = sequence.position + sequence.num_tokens;
  for (int map = 0; map < format.k_maps; ++map) {
    std::vector<double>& rows = keys.rows[static_cast<size_t>(map)];
    rows.reserve(static_cast<size_t>(end - keys.first_slot) * static_cast<size_t>(format.head_dim));
    for (int slot = keys.first_slot; slot < end; ++slot) {
      const std::byte* page = args.kv.Page(sequence.pages[slot / format.page_size], group);
      const std::vector<double> k = KRow(format, page, map, slot % format.page_size);
      rows.insert(rows.end(), k.begin(), k.end());
    }
  }
  return keys;
}

std::vector<double> GroupValuesRef(const DiffAttentionArgs<float>& args,
                                   const SequenceTokens& sequence, int group) {
  const KvFormat& format = args.kv.format;
  std::vector<double> rows;
  for (int slot = FirstSlotSeen(sequence.position, WindowSlots(args.window));
       slot < sequence.position + sequence.num_tokens; ++slot) {
    const std::byte* page = args.kv.Page(sequence.pages[slot / format.page_size], group);
    const std::vector<double> v = VRow(format, page, slot % format.page_size);
    rows.insert(rows.end(), v.begin(), v.end());
  }
  return rows;
}

AttentionMaps AttentionMapsRef(const DiffAttentionArgs<float>& args, const SequenceTokens& sequence,
                               int row, int head) {
  SequenceTokens alone = sequence;
  alone.position += row;
  alone.num_tokens = 1;
  const GroupKeys keys = GroupKeysRef(args, alone, GroupOf(args.spec, head));
  return AttentionMapsRef(args, sequence, row, head, keys);
}

AttentionMaps AttentionMapsRef(const DiffAttentionArgs<float>& args, const SequenceTokens& sequence,
                               int row, int head, const GroupKeys& keys) {
  const DiffSpec& spec = args.spec;
  const int position = sequence.position + row;
  const int first = FirstSlotSeen(position, WindowSlots(args.window));
  DS_CHECK(keys.group == GroupOf(spec, head), "the keys are those of the head's group");
  DS_CHECK(keys.first_slot <= first, "the keys begin where the query's window does, or before");
  const size_t batch_row = static_cast<size_t>(sequence.first_row + row);
  const float* q = args.q + batch_row * static_cast<size_t>(spec.q_width());
  AttentionMaps maps;
  maps.first = MapOf(args, first, position, keys, 0, q + head * spec.head_dim);
  maps.w = maps.first.p;
  if (!spec.has_second_map()) return maps;
  const int noise_head = head / (spec.num_q1_heads / spec.num_q2_heads);
  maps.second = MapOf(args, first, position, keys, spec.k_maps - 1,
                      q + (spec.num_q1_heads + noise_head) * spec.head_dim);
  maps.lambda = args.LambdaOf(sequence.first_row + row, head);
  for (size_t slot = 0; slot < maps.w.size(); ++slot)
    maps.w[slot] -= maps.lambda * maps.second.p[slot];
  return maps;
}

}  // namespace diffserve
