// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "kernels/attention/attention_maps.h"
#include "kernels/attention/attention_window.h"

namespace diffserve {
namespace {

void AttendRow(const DiffAttentionArgs<float>& args, const SequenceTokens& sequence, int row,
               int head) {
  const DiffSpec& spec = args.spec;
  const KvFormat& format = args.kv.format;
  const int group = head / (spec.num_q1_heads / spec.num_kv_groups);
  const std::vector<double> w = AttentionMapsRef(args, sequence, row, head).w;
  std::vector<double> o(static_cast<size_t>(spec.v_dim));
  const int first = FirstSlotSeen(sequence.position + row, WindowSlots(args.window));
  for (int slot = first; slot < static_cast<int>(w.size()); ++slot) {
    const std::byte* page = args.kv.Page(sequence.pages[slot / format.page_size], group);
    const std::vector<double> v = VRow(format, page, slot % format.page_size);
    for (size_t d = 0; d < v.size(); ++d) o[d] += w[static_cast<size_t>(slot)] * v[d];
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
    for (int row = 0; row < sequence.num_tokens; ++row) {
      for (int head = 0; head < args.spec.num_q1_heads; ++head)
        AttendRow(args, sequence, row, head);
    }
  }
}

}  // namespace diffserve
