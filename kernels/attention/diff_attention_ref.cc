// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "kernels/attention/attention_maps.h"
#include "kernels/attention/attention_window.h"

namespace diffserve {
namespace {

// `values`: of the group of `keys`, GroupValuesRef.
void AttendRow(const DiffAttentionArgs<float>& args, const SequenceTokens& sequence, int row,
               int head, const GroupKeys& keys, const std::vector<double>& values) {
  const DiffSpec& spec = args.spec;
  const std::vector<double> w = AttentionMapsRef(args, sequence, row, head, keys).w;
  std::vector<double> o(static_cast<size_t>(spec.v_dim));
  const int first = FirstSlotSeen(sequence.position + row, WindowSlots(args.window));
  const double* v = values.data() + static_cast<size_t>(first - keys.first_slot) * o.size();
  for (size_t slot = static_cast<size_t>(first); slot < w.size(); ++slot, v += o.size()) {
    for (size_t d = 0; d < o.size(); ++d) o[d] += w[slot] * v[d];
  }
  double factor = args.out_scale;
  if (spec.sub_norm != SubNorm::kNone) {
    double squares = 0;
    for (double value : o) squares += value * value;
    factor /= std::sqrt(squares / spec.v_dim + static_cast<double>(spec.sub_norm_eps));
  }
  const size_t batch_row = static_cast<size_t>(sequence.first_row + row);
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
    if (sequence.num_tokens == 0) continue;
    GroupKeys keys;
    std::vector<double> values;
    for (int head = 0; head < args.spec.num_q1_heads; ++head) {
      const int group = GroupOf(args.spec, head);
      if (head == 0 || group != keys.group) {
        keys = GroupKeysRef(args, sequence, group);
        values = GroupValuesRef(args, sequence, group);
      }
      for (int row = 0; row < sequence.num_tokens; ++row)
        AttendRow(args, sequence, row, head, keys, values);
    }
  }
}

}  // namespace diffserve
