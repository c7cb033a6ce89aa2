#include <algorithm>
#include <cmath>

#include "kernels/attention/attention_maps.h"

namespace diffserve {
namespace {

// softmax(q K^T * scale) over slots 0 .. position.
AttentionMap MapOf(const DiffAttentionArgs<float>& args, const SequenceTokens& sequence,
                   int position, int group, int k_map, const float* q) {
  const KvFormat& format = args.kv.format;
  AttentionMap map;
  for (int slot = 0; slot <= position; ++slot) {
    const std::byte* page = args.kv.Page(sequence.pages[slot / format.page_size], group);
    const std::vector<double> k = KRow(format, page, k_map, slot % format.page_size);
    double score = 0;
    for (size_t d = 0; d < k.size(); ++d) score += static_cast<double>(q[d]) * k[d];
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

AttentionMaps AttentionMapsRef(const DiffAttentionArgs<float>& args, const SequenceTokens& sequence,
                               int row, int head) {
  const DiffSpec& spec = args.spec;
  const int position = sequence.position + row;
  const int group = head / (spec.num_q1_heads / spec.num_kv_groups);
  const size_t batch_row = static_cast<size_t>(sequence.first_row + row);
  const float* q = args.q + batch_row * static_cast<size_t>(spec.q_width());
  AttentionMaps maps;
  maps.first = MapOf(args, sequence, position, group, 0, q + head * spec.head_dim);
  maps.w = maps.first.p;
  if (!spec.has_second_map()) return maps;
  const int noise_head = head / (spec.num_q1_heads / spec.num_q2_heads);
  maps.second = MapOf(args, sequence, position, group, spec.k_maps - 1,
                      q + (spec.num_q1_heads + noise_head) * spec.head_dim);
  maps.lambda = args.LambdaOf(sequence.first_row + row, head);
  for (size_t slot = 0; slot < maps.w.size(); ++slot)
    maps.w[slot] -= maps.lambda * maps.second.p[slot];
  return maps;
}

}  // namespace diffserve
