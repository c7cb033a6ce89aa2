// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/ops/sample.h"
#include "kernels/ops/sample_arithmetic.h"

namespace diffserve {
namespace {

using Logits = std::vector<float>;

bool IsFinite(const Logits& row) {
  const auto is_wrong = [](float logit) { return std::isnan(logit) || logit == HUGE_VALF; };
  return std::ranges::none_of(row, is_wrong) && std::isfinite(std::ranges::max(row));
}

// Ids by descending value, ties to the smaller id.
std::vector<size_t> OrderOf(const Logits& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return values[a] > values[b]; });
  return order;
}

// ceil(share * mass / 2^64), at least 1.
uint64_t MassOfShare(uint64_t share, uint64_t mass) {
  const unsigned __int128 product = static_cast<unsigned __int128>(share) * mass;
  return std::max<uint64_t>(1, static_cast<uint64_t>((product + ~uint64_t{0}) >> 64));
}

// The mass of each token that the filters keep; 0 for the others.
std::vector<uint64_t> KeptMasses(const SampleTask& task, const Logits& row) {
  const float max = std::ranges::max(row);
  Logits z(row.size());
  for (size_t i = 0; i < row.size(); ++i)
    z[i] = rounded::Mul(rounded::Sub(row[i], max), task.inverse_temperature);
  std::vector<size_t> order = OrderOf(z);
  if (task.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(task.top_k)));
  std::vector<uint64_t> masses(row.size(), 0);
  uint64_t total = 0;
  for (size_t i : order) total += masses[i] = MassOf(z[i]);
  const uint64_t needed = task.mass_share > 0 ? MassOfShare(task.mass_share, total) : total;
  uint64_t reached = 0;
  for (size_t i : order) {
    if (reached >= needed) masses[i] = 0;
    reached += masses[i];
    if (z[i] < task.min_z) masses[i] = 0;
  }
  return masses;
}

// The first token whose cumulative mass, in the order of ids, exceeds uniform * total.
int32_t DrawnToken(const std::vector<uint64_t>& masses, uint64_t uniform) {
  uint64_t target = MulHigh(uniform, std::accumulate(masses.begin(), masses.end(), uint64_t{0}));
  size_t token = 0;
  while (target >= masses[token]) target -= masses[token++];
  return static_cast<int32_t>(token);
}

SampledToken SampleOne(const Logits& given, const SampleTask& task,
                       std::span<const LogitAdjustment> adjustments, const uint32_t* mask) {
  SampledToken out;
  if (!IsFinite(given)) return out;
  if (task.num_top >= 0) {
    out.max = std::ranges::max(given);
    for (float logit : given) out.total += MassOf(rounded::Sub(logit, out.max));
    const std::vector<size_t> order = OrderOf(given);
    for (size_t i = 0; i < kTopLogprobsMax; ++i) {
      const bool wanted = i < order.size() && i < static_cast<size_t>(task.num_top);
      out.top_tokens[i] = wanted ? static_cast<int32_t>(order[i]) : -1;
      out.top_logits[i] = wanted ? given[order[i]] : 0;
    }
  }
  Logits row = given;
  if (task.kind != SampleKind::kScore) {
    for (const LogitAdjustment& adjustment : adjustments) {
      float& logit = row[static_cast<size_t>(adjustment.token)];
      logit = AdjustLogit(logit, adjustment, task);
    }
    for (size_t token = 0; mask != nullptr && token < row.size(); ++token) {
      if (!MaskHas(mask, static_cast<int64_t>(token))) row[token] = -HUGE_VALF;
    }
    if (!IsFinite(row)) return out;
  }
  out.token = task.kind == SampleKind::kScore    ? task.scored_token
              : task.kind == SampleKind::kGreedy ? static_cast<int32_t>(OrderOf(row)[0])
                                                 : DrawnToken(KeptMasses(task, row), task.uniform);
  out.finite = 1;
  if (task.num_top >= 0) out.logit = given[static_cast<size_t>(out.token)];
  return out;
}

}  // namespace

void SampleRef(const SampleArgs& args) {
  for (int i = 0; i < args.num_rows; ++i) {
    const SampleTask& task = args.tasks[i];
    const float* row = args.logits + static_cast<int64_t>(i) * args.vocab_size;
    if (task.kind == SampleKind::kNothing) continue;
    const uint32_t* mask = task.mask < 0 ? nullptr
                                         : args.masks + static_cast<size_t>(task.mask) *
                                                            MaskWords(args.vocab_size);
    args.sampled[i] = SampleOne(
        Logits(row, row + args.vocab_size), task,
        {args.adjustments + task.first_adjustment, static_cast<size_t>(task.num_adjustments)},
        mask);
  }
}

}  // namespace diffserve
