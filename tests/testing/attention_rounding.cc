// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/attention_rounding.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention/attention_window.h"

namespace diffserve::testing {
namespace {

// One map of one row with what bf16 kernels round: p before it meets V. q: of the row.
std::vector<double> RoundedMap(AttentionBatch& batch, const SequenceTokens& rows, int row,
                               const float* q, int k_map, int group) {
  const DiffSpec& spec = batch.spec;
  const PagedKv kv = batch.memory.kv();
  const int page_size = kv.format.page_size;
  const int position = rows.position + row;
  const int first = FirstSlotSeen(position, WindowSlots(batch.window));
  const auto page_of = [&](int slot) { return kv.Page(rows.pages[slot / page_size], group); };
  std::vector<double> scores;
  for (int slot = first; slot <= position; ++slot) {
    double& score = scores.emplace_back();
    const std::vector<double> k = KRow(kv.format, page_of(slot), k_map, slot % page_size);
    for (size_t d = 0; d < k.size(); ++d) score += double{q[d]} * k[d];
    score *= double{batch.scale()};
  }
  QuantiseLogitsRef(scores, batch.logit_quant, first);
  const double max = *std::max_element(scores.begin(), scores.end());
  std::vector<double> out(static_cast<size_t>(spec.v_dim));
  double sum = 0;
  for (int slot = first; slot <= position; ++slot) {
    const float p = static_cast<float>(std::exp(scores[static_cast<size_t>(slot - first)] - max));
    sum += double{p};
    const double rounded = BFloat16ToFloat(FloatToBFloat16(p));
    const std::vector<double> v = VRow(kv.format, page_of(slot), slot % page_size);
    for (size_t d = 0; d < v.size(); ++d) out[d] += rounded * v[d];
  }
  for (double& value : out) value /= sum;
  return out;
}

// The reference with bf16 rounding of p and of the output: the error that a bf16 kernel cannot
// avoid.
std::vector<float> RoundedReference(AttentionBatch& batch) {
  const DiffSpec& spec = batch.spec;
  const std::vector<float> q = batch.RoundedQ();
  const auto q_of = [&](int row, int head) {
    return q.data() + int64_t{row} * spec.q_width() + head * spec.head_dim;
  };
  std::vector<float> out;
  for (const SequenceTokens& rows : batch.memory.sequences()) {
    for (int row = 0; row < rows.num_tokens; ++row) {
      for (int head = 0; head < spec.num_q1_heads; ++head) {
        const int group = head / (spec.num_q1_heads / spec.num_kv_groups);
        std::vector<double> o = RoundedMap(batch, rows, row, q_of(rows.first_row + row, head), 0,
                                           group);
        if (spec.has_second_map()) {
          const int noise = spec.num_q1_heads + head / (spec.num_q1_heads / spec.num_q2_heads);
          const std::vector<double> a2 = RoundedMap(
              batch, rows, row, q_of(rows.first_row + row, noise), spec.k_maps - 1, group);
          const size_t at = static_cast<size_t>((rows.first_row + row) * spec.num_q1_heads + head);
          const double lambda = batch.lambda_rows.empty() ? batch.lambda : batch.lambda_rows[at];
          for (size_t d = 0; d < o.size(); ++d) o[d] -= lambda * a2[d];
        }
        double squares = 0;
        for (double value : o) squares += value * value;
        double factor = batch.out_scale;
        if (spec.sub_norm != SubNorm::kNone)
          factor /= std::sqrt(squares / spec.v_dim + double{spec.sub_norm_eps});
        for (size_t d = 0; d < o.size(); ++d) {
          const double value = o[d] * factor *
                               (batch.weight.empty() ? 1.0 : double{batch.weight[d]});
          out.push_back(BFloat16ToFloat(FloatToBFloat16(static_cast<float>(value))));
        }
      }
    }
  }
  return out;
}

}  // namespace

Errors ErrorsOf(const std::vector<float>& values, const std::vector<float>& expected) {
  Errors errors;
  for (size_t i = 0; i < values.size(); ++i) {
    const double error = std::abs(double{values[i]} - double{expected[i]});
    errors.max = std::isnan(error) ? std::numeric_limits<double>::infinity()
                                   : std::max(errors.max, error);
    errors.rms += error * error;
  }
  errors.rms = std::sqrt(errors.rms / static_cast<double>(std::max<size_t>(1, values.size())));
  return errors;
}

void ExpectLikeReference(AttentionBatch& batch, const std::vector<float>& out, double times,
                         double rms_times) {
  const std::vector<float> expected = batch.Reference();
  ASSERT_TRUE(
      std::all_of(expected.begin(), expected.end(), [](float x) { return std::isfinite(x); }));
  ASSERT_EQ(out.size(), expected.size());
  if (batch.activations() == DType::kFloat32) {
    const DType pages = batch.memory.format().codec.dtype;
    EXPECT_TRUE(AllClose(out, expected, ToleranceOf(KernelOp::kAttention, pages)))
        << Describe(batch.spec);
    return;
  }
  const Errors allowed = ErrorsOf(RoundedReference(batch), expected);
  const Errors errors = ErrorsOf(out, expected);
  EXPECT_LE(errors.max, times * allowed.max + 1e-6) << Describe(batch.spec);
  EXPECT_LE(errors.rms, rms_times * allowed.rms + 1e-7) << Describe(batch.spec);
}

}  // namespace diffserve::testing
