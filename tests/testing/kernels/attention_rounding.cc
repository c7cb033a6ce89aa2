// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/kernels/attention_rounding.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention/attention_maps.h"
#include "kernels/attention/attention_window.h"

namespace diffserve::testing {
namespace {

// The sum of a map's slots from `first` on, whose V begins at `v`, with what bf16 kernels round: p
// before it meets V.
std::vector<double> RoundedSum(const AttentionMap& map, int first, const double* v, size_t v_dim) {
  const double max = *std::ranges::max_element(map.logits);
  std::vector<double> out(v_dim);
  double sum = 0;
  for (size_t slot = static_cast<size_t>(first); slot < map.logits.size(); ++slot, v += v_dim) {
    const float p = static_cast<float>(std::exp(map.logits[slot] - max));
    sum += double{p};
    const double rounded = BFloat16ToFloat(FloatToBFloat16(p));
    for (size_t d = 0; d < v_dim; ++d) out[d] += rounded * v[d];
  }
  for (double& value : out) value /= sum;
  return out;
}

// The reference with bf16 rounding of p and of the output: the error that a bf16 kernel cannot
// avoid.
std::vector<float> RoundedReference(AttentionBatch& batch) {
  const DiffSpec& spec = batch.spec;
  const auto v_dim = static_cast<size_t>(spec.v_dim);
  const std::vector<float> q = batch.RoundedQ();
  std::vector<float> unused, out;
  DiffAttentionArgs<float> args = batch.Args(unused);
  args.q = q.data();
  for (const SequenceTokens& rows : args.batch) {
    if (rows.num_tokens == 0) continue;
    std::vector<GroupKeys> keys;
    std::vector<std::vector<double>> values;
    for (int group = 0; group < spec.num_kv_groups; ++group) {
      keys.push_back(GroupKeysRef(args, rows, group));
      values.push_back(GroupValuesRef(args, rows, group));
    }
    for (int row = 0; row < rows.num_tokens; ++row) {
      const int first = FirstSlotSeen(rows.position + row, WindowSlots(args.window));
      for (int head = 0; head < spec.num_q1_heads; ++head) {
        const auto group = static_cast<size_t>(GroupOf(spec, head));
        const AttentionMaps maps = AttentionMapsRef(args, rows, row, head, keys[group]);
        const double* v = values[group].data() +
                          static_cast<size_t>(first - keys[group].first_slot) * v_dim;
        std::vector<double> o = RoundedSum(maps.first, first, v, v_dim);
        if (spec.has_second_map()) {
          const std::vector<double> a2 = RoundedSum(maps.second, first, v, v_dim);
          for (size_t d = 0; d < o.size(); ++d) o[d] -= maps.lambda * a2[d];
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
