#include <algorithm>
#include <cmath>

#include "kernels/attention/attention_maps.h"
#include "kernels/base/check.h"

namespace diffserve {
namespace {

// softmax(q K^T * scale) over slots 0 .. position.
AttentionMap MapOf(const DiffAttentionArgs<float>& args, int position,
                   const std::vector<double>& rows, const float* q) {
  const auto head_dim = static_cast<size_t>(args.spec.head_dim);
  AttentionMap map;
  const double* k = rows.data();
  for (int slot = 0; slot <= position; ++slot, k += head_dim) {
    double score = 0;
    for (size_t d = 0; d < head_dim; ++d) score += static_cast<double>(q[d]) * k[d];
    map.logits.push_back(score * static_cast<double>(args.scale));
  }
  QuantiseLogitsRef(map.logits, args.logit_quant);
  const double max = *std::ranges::max_element(map.logits);
  double sum = 0;
  for (double logit : map.logits) sum += map.p.emplace_back(std::exp(logit - max));
  for (double& value : map.p) value /= sum;
  return map;
}

}  // namespace

GroupKeys GroupKeysRef(const PagedKv& kv, const SequenceTokens& sequence, int num_slots,
                       int group) {
  const KvFormat& format = kv.format;
  GroupKeys keys;
  keys.group = group;
  for (int map = 0; map < format.k_maps; ++map) {
    std::vector<double>& rows = keys.rows[static_cast<size_t>(map)];
    rows.reserve(static_cast<size_t>(num_slots) * static_cast<size_t>(format.head_dim));
    for (int slot = 0; slot < num_slots; ++slot) {
      const std::byte* page = kv.Page(sequence.pages[slot / format.page_size], group);
      const std::vector<double> k = KRow(format, page, map, slot % format.page_size);
      rows.insert(rows.end(), k.begin(), k.end());
    }
  }
  return keys;
}

AttentionMaps AttentionMapsRef(const DiffAttentionArgs<float>& args, const SequenceTokens& sequence,
                               int row, int head) {
  const GroupKeys keys = GroupKeysRef(args.kv, sequence, sequence.position + row + 1,
                                      GroupOf(args.spec, head));
  return AttentionMapsRef(args, sequence, row, head, keys);
}

AttentionMaps AttentionMapsRef(const DiffAttentionArgs<float>& args, const SequenceTokens& sequence,
                               int row, int head, const GroupKeys& keys) {
  const DiffSpec& spec = args.spec;
  const int position = sequence.position + row;
  DS_CHECK(keys.group == GroupOf(spec, head), "the keys are those of the head's group");
  const size_t batch_row = static_cast<size_t>(sequence.first_row + row);
  const float* q = args.q + batch_row * static_cast<size_t>(spec.q_width());
  AttentionMaps maps;
  maps.first = MapOf(args, position, keys.rows[0], q + head * spec.head_dim);
  maps.w = maps.first.p;
  if (!spec.has_second_map()) return maps;
  const int noise_head = head / (spec.num_q1_heads / spec.num_q2_heads);
  maps.second = MapOf(args, position, keys.rows[static_cast<size_t>(spec.k_maps - 1)],
                      q + (spec.num_q1_heads + noise_head) * spec.head_dim);
  maps.lambda = args.LambdaOf(sequence.first_row + row, head);
  for (size_t slot = 0; slot < maps.w.size(); ++slot)
    maps.w[slot] -= maps.lambda * maps.second.p[slot];
  return maps;
}

}  // namespace diffserve
