#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/attention/diff_attention.h"
#include "kernels/base/check.h"

namespace diffserve {
namespace {

// One sequence's slots as one group sees them.
struct GroupSlots {
  const PagedKv& kv;
  const int32_t* pages;
  int group;

  const std::byte* PageOf(int slot) const {
    return kv.Page(pages[slot / kv.format.page_size], group);
  }
  std::vector<double> K(int k_map, int slot) const {
    return KRow(kv.format, PageOf(slot), k_map, slot % kv.format.page_size);
  }
  std::vector<double> V(int slot) const {
    return VRow(kv.format, PageOf(slot), slot % kv.format.page_size);
  }
};

// softmax(q K^T * scale) V over slots 0 .. position.
std::vector<double> Map(const GroupSlots& slots, const float* q, int k_map, int position,
                        const DiffAttentionArgs<float>& args) {
  const KvFormat& format = slots.kv.format;
  const size_t count = static_cast<size_t>(position) + 1;
  std::vector<double> p(count);
  for (int slot = 0; slot <= position; ++slot) {
    double score = 0;
    const float* q_d = q;
    for (double k : slots.K(k_map, slot)) score += static_cast<double>(*q_d++) * k;
    p[static_cast<size_t>(slot)] = score * args.scale;
  }
  QuantiseLogitsRef(p, args.logit_quant);
  double max = -std::numeric_limits<double>::infinity();
  for (double logit : p) max = std::max(max, logit);
  double sum = 0;
  for (double& value : p) sum += value = std::exp(value - max);
  std::vector<double> out(static_cast<size_t>(format.v_dim));
  for (int slot = 0; slot <= position; ++slot) {
    const std::vector<double> v = slots.V(slot);
    for (size_t d = 0; d < v.size(); ++d) out[d] += p[static_cast<size_t>(slot)] * v[d];
  }
  for (double& value : out) value /= sum;
  return out;
}

void Row(const DiffAttentionArgs<float>& args, const SequenceTokens& sequence, int row, int head) {
  const DiffSpec& spec = args.spec;
  const int position = sequence.position + row;
  const size_t batch_row = static_cast<size_t>(sequence.first_row + row);
  const float* q = args.q + batch_row * static_cast<size_t>(spec.q_width());
  const GroupSlots slots{args.kv, sequence.pages, head / (spec.num_q1_heads / spec.num_kv_groups)};

  std::vector<double> o = Map(slots, q + head * spec.head_dim, 0, position, args);
  if (spec.has_second_map()) {
    const int noise_head = head / (spec.num_q1_heads / spec.num_q2_heads);
    const float* q2 = q + (spec.num_q1_heads + noise_head) * spec.head_dim;
    const std::vector<double> a2 = Map(slots, q2, spec.k_maps - 1, position, args);
    const double lambda =
        spec.lambda_kind == LambdaKind::kPerTokenHead
            ? args.lambda_rows[batch_row * static_cast<size_t>(spec.num_q1_heads) +
                               static_cast<size_t>(head)]
            : args.lambda;
    for (size_t d = 0; d < o.size(); ++d) o[d] -= lambda * a2[d];
  }
  double factor = args.out_scale;
  if (spec.sub_norm != SubNorm::kNone) {
    double squares = 0;
    for (double value : o) squares += value * value;
    factor /= std::sqrt(squares / spec.v_dim + static_cast<double>(spec.sub_norm_eps));
  }
  float* out = args.out + batch_row * static_cast<size_t>(spec.out_width()) +
               static_cast<size_t>(head * spec.v_dim);
  for (int d = 0; d < spec.v_dim; ++d) {
    const double weight = spec.sub_norm == SubNorm::kAffine ? args.sub_norm_weight[d] : 1.0;
    out[d] = static_cast<float>(o[static_cast<size_t>(d)] * weight * factor);
  }
}

}  // namespace

void DiffAttentionRef(const DiffAttentionArgs<float>& args) {
  for (const SequenceTokens& sequence : args.batch) {
    for (int row = 0; row < sequence.num_tokens; ++row) {
      for (int head = 0; head < args.spec.num_q1_heads; ++head) Row(args, sequence, row, head);
    }
  }
}

}  // namespace diffserve
