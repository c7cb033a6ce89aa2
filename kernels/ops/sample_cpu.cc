// SPDX-License-Identifier: Apache-2.0
// Uses integers, and floats that are rounded separately, so a draw has the same bits on every
// machine and on the GPU. The loops over a row are those of the level (sample_kernel.h).
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/kernels_for.h"
#include "kernels/base/thread_pool.h"
#include "kernels/ops/sample.h"
#include "kernels/ops/sample_arithmetic.h"
#include "kernels/ops/sample_kernel.h"
#include "kernels/process/check.h"

namespace diffserve {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr size_t kStretch = kSampleStretch;
constexpr size_t kGroup = kSampleGroup;

// False for a row with a NaN, +Inf or no finite value.
bool IsFinite(const RowExtent& extent) { return !extent.has_nan && std::isfinite(extent.max); }

bool AnyWithin(const SampleLoops& loops, const float* values, size_t count, float least,
               float most) {
  if (count < kGroup) return true;  // the end of a row, not worth vectors
  return loops.any_within(values, least, most);
}

// Calls visit(i) for each i with values[i] >= least, ascending, until it returns false. Fast if
// there are few. `least` may rise.
template <typename Visit>
void VisitAtLeast(const SampleLoops& loops, std::span<const float> row, const float& least,
                  Visit visit) {
  const float* values = row.data();
  const size_t count = row.size();
  for (size_t begin = 0; begin < count; begin += kGroup) {
    const size_t end = std::min(count, begin + kGroup);
    if (!AnyWithin(loops, values + begin, end - begin, least,
                   std::numeric_limits<float>::infinity()))
      continue;
    for (size_t i = begin; i < end; ++i) {
      if (values[i] >= least && !visit(i)) return;
    }
  }
}

int32_t FirstIndexOf(const SampleLoops& loops, std::span<const float> row, float max) {
  int32_t first = 0;
  VisitAtLeast(loops, row, max, [&](size_t i) {
    first = static_cast<int32_t>(i);
    return false;
  });
  return first;
}

uint64_t MassOfRow(const SampleLoops& loops, std::span<const float> row, float max) {
  float z[kStretch];
  uint64_t total = 0;
  for (size_t begin = 0; begin < row.size(); begin += kStretch) {
    const size_t count = std::min(kStretch, row.size() - begin);
    const auto signed_count = static_cast<int64_t>(count);
    loops.scale(row.data() + begin, signed_count, max, 1.0f, z);
    total += loops.sum_of_masses(z, signed_count);
  }
  return total;
}

// The `count` largest, largest first, ties to the smaller id.
void FindTop(const SampleLoops& loops, std::span<const float> row, int count, SampledToken* out) {
  const int wanted = static_cast<int>(
      std::min<size_t>(static_cast<size_t>(std::max(count, 0)), row.size()));
  std::fill_n(out->top_tokens, kTopLogprobsMax, -1);
  if (wanted == 0) return;
  int found = 0;
  float least = kMinusInfinity;
  VisitAtLeast(loops, row, least, [&](size_t i) {
    const float logit = row[i];
    if (found == wanted && logit == least) return true;
    int rank = found == wanted ? found - 1 : found++;
    for (; rank > 0 && out->top_logits[rank - 1] < logit; --rank) {
      out->top_logits[rank] = out->top_logits[rank - 1];
      out->top_tokens[rank] = out->top_tokens[rank - 1];
    }
    out->top_logits[rank] = logit;
    out->top_tokens[rank] = static_cast<int32_t>(i);
    if (found == wanted) least = out->top_logits[wanted - 1];
    return true;
  });
}

// ---- Filters.

constexpr SampleCutoff kKeepsAll = {kMinusInfinity, std::numeric_limits<int32_t>::max()};

bool Precedes(const SampleCutoff& a, const SampleCutoff& b) {
  return a.z > b.z || (a.z == b.z && a.id < b.id);
}

// The cutoff at which the amounts, summed in order, reach `left`. REQUIRES: their overall sum does.
template <typename AmountOf>
SampleCutoff CutoffAmong(std::span<SampleCutoff> members, uint64_t left, AmountOf amount_of) {
  while (members.size() > 32) {
    const size_t half = members.size() / 2;
    std::nth_element(members.begin(), members.begin() + static_cast<ptrdiff_t>(half), members.end(),
                     Precedes);
    uint64_t sum = 0;
    for (const SampleCutoff& member : members.first(half)) sum += amount_of(member.z);
    const bool in_second_half = sum < left;
    if (in_second_half) left -= sum;
    members = in_second_half ? members.subspan(half) : members.first(half);
  }
  std::sort(members.begin(), members.end(), Precedes);
  for (const SampleCutoff& member : members) {
    const uint64_t amount = amount_of(member.z);
    if (amount >= left) return member;
    left -= amount;
  }
  return members.empty() ? kKeepsAll : members.back();
}

// The tokens of a row that the filters have kept so far, by ascending id.
class Candidates {
 public:
  Candidates(const SampleLoops& loops, std::span<const float> logits, float max,
             float inverse_temperature)
      : loops_(loops), count_(logits.size()) {
    thread_local std::vector<float> z;
    thread_local std::vector<int32_t> ids;
    z.resize(std::max(z.size(), count_));
    ids.resize(std::max(ids.size(), count_));
    z_ = z.data();
    ids_ = ids.data();
    loops_.scale(logits.data(), static_cast<int64_t>(count_), max, inverse_temperature, z_);
  }

  void KeepTopK(int top_k) {
    if (static_cast<size_t>(top_k) >= count_) return;
    Sums counts = {};
    ForEachStretch([&](const float*, const int32_t* buckets, size_t count) {
      for (size_t i = 0; i < count; ++i) ++counts[static_cast<size_t>(buckets[i])];
    });
    Keep(CutoffOf(counts, static_cast<uint64_t>(top_k), [](float) { return uint64_t{1}; }));
  }

  // The tokens below `least` weigh less together than the mass that top_p leaves out. So the cutoff
  // is among the others, and only these are sorted into buckets. As masses are rounded, this holds
  // only if the mass of one token at `least` is 1 or more.
  void KeepTopP(uint64_t share) {
    const uint64_t total = AddUp(SumsOfStretches());
    const double left_out = (1.0 - std::ldexp(static_cast<double>(share), -64)) *
                            std::ldexp(static_cast<double>(total), -kMassBits);
    const double least = std::log(left_out / (2.0 * static_cast<double>(count_)));
    if (least > -28.0) Keep({.z = static_cast<float>(least), .id = kKeepsAll.id});
    Sums sums = {};
    ForEachStretch([&](const float* z, const int32_t* buckets, size_t count) {
      uint64_t masses[kStretch];
      loops_.masses(z, static_cast<int64_t>(count), masses);
      for (size_t i = 0; i < count; ++i) sums[static_cast<size_t>(buckets[i])] += masses[i];
    });
    Keep(CutoffOf(sums, MinMass(share, total), MassOf));
  }

  void Keep(const SampleCutoff& cutoff) {
    const int32_t* ids = is_whole_row_ ? nullptr : ids_;
    count_ = static_cast<size_t>(loops_.keep(z_, ids, static_cast<int64_t>(count_), cutoff, ids_));
    is_whole_row_ = false;
  }

  // Inverse of the cumulative distribution in order of ids: the first token whose cumulative mass
  // exceeds uniform * total.
  int32_t Draw(uint64_t uniform) const {
    std::vector<uint64_t>& sums = SumsOfStretches();
    uint64_t target = MulHigh(uniform, AddUp(sums));
    size_t stretch = 0;
    while (target >= sums[stretch]) target -= sums[stretch++];
    for (size_t i = stretch * kStretch;; ++i) {
      const uint64_t mass = MassOf(z_[i]);
      if (target < mass) return IdOf(i);
      target -= mass;
    }
  }

 private:
  using Sums = std::array<uint64_t, kLastBucket + 1>;

  int32_t IdOf(size_t i) const { return is_whole_row_ ? static_cast<int32_t>(i) : ids_[i]; }

  // Per thread, reused.
  static std::vector<uint64_t>& SumsOfStretches() {
    thread_local std::vector<uint64_t> sums;
    return sums;
  }

  // The overall mass, and the mass of each stretch.
  uint64_t AddUp(std::vector<uint64_t>& sums) const {
    sums.clear();
    for (size_t begin = 0; begin < count_; begin += kStretch) {
      const size_t count = std::min(kStretch, count_ - begin);
      sums.push_back(loops_.sum_of_masses(z_ + begin, static_cast<int64_t>(count)));
    }
    return std::accumulate(sums.begin(), sums.end(), uint64_t{0});
  }

  // Calls use(z, buckets, count) for each stretch.
  template <typename Use>
  void ForEachStretch(Use use) const {
    int32_t buckets[kStretch];
    for (size_t begin = 0; begin < count_; begin += kStretch) {
      const size_t count = std::min(kStretch, count_ - begin);
      const float* z = z_ + begin;
      loops_.buckets(z, static_cast<int64_t>(count), buckets);
      use(z, buckets, count);
    }
  }

  // The cutoff at which the amounts reach `limit`. Only the bucket that contains it is sorted.
  template <typename AmountOf>
  SampleCutoff CutoffOf(const Sums& sums, uint64_t limit, AmountOf amount_of) const {
    int32_t bucket = 0;
    while (bucket < kLastBucket && sums[static_cast<size_t>(bucket)] < limit)
      limit -= sums[static_cast<size_t>(bucket++)];
    if (bucket == kLastBucket) return kKeepsAll;
    thread_local std::vector<SampleCutoff> members;
    members.clear();
    // A little wider than the bucket: BucketOf decides.
    const float least = -static_cast<float>(bucket + 1) / kBucketsPerUnit,
                most = -static_cast<float>(bucket) / kBucketsPerUnit;
    for (size_t begin = 0; begin < count_; begin += kGroup) {
      const size_t end = std::min(count_, begin + kGroup);
      if (!AnyWithin(loops_, z_ + begin, end - begin, least, most)) continue;
      for (size_t i = begin; i < end; ++i) {
        if (SampleBucketOf(z_[i]) == bucket) members.push_back({z_[i], IdOf(i)});
      }
    }
    return CutoffAmong(std::span<SampleCutoff>(members), limit, amount_of);
  }

  const SampleLoops& loops_;
  float* z_;  // <= 0, at least one is 0; both arrays belong to the thread and are reused for its
              // next row
  int32_t* ids_;  // unless is_whole_row_
  size_t count_;
  bool is_whole_row_ = true;
};

int32_t DrawToken(const SampleLoops& loops, const SampleTask& task, std::span<const float> logits,
                  float max) {
  Candidates candidates(loops, logits, max, task.inverse_temperature);
  if (task.top_k > 0) candidates.KeepTopK(task.top_k);
  if (task.mass_share > 0) candidates.KeepTopP(task.mass_share);
  if (task.min_z > kMinusInfinity) candidates.Keep({.z = task.min_z, .id = kKeepsAll.id});
  return candidates.Draw(task.uniform);
}

// One row's work. `adjustments` are the task's own; `mask` is its mask or nullptr.
SampledToken SampleOne(const SampleLoops& loops, std::span<float> logits, const SampleTask& task,
                       std::span<LogitAdjustment> adjustments, const uint32_t* mask) {
  SampledToken out;

  // Stage 1: the extent of the row as the model gave it.
  const auto extent_of_row = [&] {
    return loops.extent(logits.data(), static_cast<int64_t>(logits.size()));
  };
  RowExtent extent = extent_of_row();
  if (!IsFinite(extent)) return out;

  // Stage 2: the inputs of log-probabilities.
  if (task.num_top >= 0) {
    out.max = extent.max;
    out.total = MassOfRow(loops, logits, extent.max);
    FindTop(loops, logits, task.num_top, &out);
  }

  // Stage 3: bias, penalties and bans.
  if (task.kind == SampleKind::kScore) {
    adjustments = {};
    mask = nullptr;
  }
  for (LogitAdjustment& adjustment : adjustments) {
    float& logit = logits[static_cast<size_t>(adjustment.token)];
    adjustment.logit = logit;
    logit = AdjustLogit(logit, adjustment, task);
  }
  if (mask != nullptr) loops.ban_unmasked(logits.data(), mask, static_cast<int64_t>(logits.size()));
  if (!adjustments.empty() || mask != nullptr) extent = extent_of_row();
  if (!IsFinite(extent)) return out;

  // Stage 4: the token.
  out.token = task.kind == SampleKind::kScore    ? task.scored_token
              : task.kind == SampleKind::kGreedy ? FirstIndexOf(loops, logits, extent.max)
                                                 : DrawToken(loops, task, logits, extent.max);
  out.finite = 1;
  if (task.num_top < 0) return out;
  out.logit = logits[static_cast<size_t>(out.token)];
  for (const LogitAdjustment& adjustment : adjustments) {
    if (adjustment.token == out.token) out.logit = adjustment.logit;
  }
  return out;
}

}  // namespace

// One worker does a row, and then takes the next free one.
void cpu::Sample(const SampleArgs& args, CpuIsa isa, ThreadPool& pool) {
  DS_CHECK(args.vocab_size > 0 && args.vocab_size <= kSampledVocabMax, "rows of logits");
  if (args.num_rows == 0) return;
  const SampleLoops& loops = KernelsFor<SampleLoops>(isa);
  std::atomic<int> next{0};
  pool.Run([&](int) {
    for (int i = next.fetch_add(1); i < args.num_rows; i = next.fetch_add(1)) {
      const SampleTask& task = args.tasks[i];
      if (task.kind == SampleKind::kNothing) continue;
      const auto vocab = static_cast<size_t>(args.vocab_size);
      const uint32_t* mask = task.mask < 0 ? nullptr
                                           : args.masks + static_cast<size_t>(task.mask) *
                                                              MaskWords(args.vocab_size);
      args.sampled[i] = SampleOne(
          loops, std::span(args.logits + static_cast<size_t>(i) * vocab, vocab), task,
          std::span(args.adjustments + task.first_adjustment,
                    static_cast<size_t>(task.num_adjustments)),
          mask);
    }
  });
}

}  // namespace diffserve
