// Everything here is plain scalar C++ over integers and over floats that are rounded alone, so that
// a draw has the same bits on every machine, whichever instruction set the other kernels use, and
// on the GPU. Loops over a row work on pointers and on stretches of tokens, where a span's checks
// or a branch would keep them from being vectorized.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"
#include "kernels/ops/sample.h"
#include "kernels/ops/sample_arithmetic.h"

namespace diffserve {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr size_t kStretch = 256;  // tokens; what is worked on between them stays in the L1 cache

struct RowExtent {
  float max = kMinusInfinity;
  bool finite = false;  // no NaN, no +Inf, at least one finite value
};

RowExtent ExtentOf(std::span<const float> row) {
  constexpr size_t kLanes = 16;
  float max[kLanes];
  std::fill_n(max, kLanes, kMinusInfinity);
  int32_t nans[kLanes] = {};
  const float* values = row.data();
  for (size_t i = 0; i + kLanes <= row.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float value = values[i + lane];
      max[lane] = value > max[lane] ? value : max[lane];
      nans[lane] |= value != value;
    }
  }
  for (size_t i = row.size() - row.size() % kLanes; i < row.size(); ++i) {
    max[0] = values[i] > max[0] ? values[i] : max[0];
    nans[0] |= values[i] != values[i];
  }
  RowExtent extent;
  extent.max = *std::max_element(max, max + kLanes);
  extent.finite = std::all_of(nans, nans + kLanes, [](int32_t nan) { return nan == 0; }) &&
                  std::isfinite(extent.max);
  return extent;
}

constexpr size_t kGroup = 64;  // values that are looked at together, to pass over them where there
                               // is nothing to do

bool AnyWithin(const float* values, size_t count, float least, float most) {
  if (count < kGroup) return true;  // the end of a row, not worth vectors
  int32_t any = 0;
  for (size_t i = 0; i < kGroup; ++i)
    any |= static_cast<int32_t>(values[i] >= least) & static_cast<int32_t>(values[i] <= most);
  return any != 0;
}

// Calls visit(i) for each i with values[i] >= least, ascending, until it returns false; fast where
// few are. `least` may rise.
template <typename Visit>
void VisitAtLeast(const float* values, size_t count, const float& least, Visit visit) {
  for (size_t begin = 0; begin < count; begin += kGroup) {
    const size_t end = std::min(count, begin + kGroup);
    if (!AnyWithin(values + begin, end - begin, least, std::numeric_limits<float>::infinity()))
      continue;
    for (size_t i = begin; i < end; ++i) {
      if (values[i] >= least && !visit(i)) return;
    }
  }
}

int32_t FirstIndexOf(std::span<const float> row, float max) {
  int32_t first = 0;
  VisitAtLeast(row.data(), row.size(), max, [&](size_t i) {
    first = static_cast<int32_t>(i);
    return false;
  });
  return first;
}

// ---- Masses of up to kStretch tokens.

void Masses(const float* z, size_t count, uint64_t* masses) {
  float unrounded[kStretch];
  for (size_t i = 0; i < count; ++i) unrounded[i] = UnroundedMass(z[i]);
  for (size_t i = 0; i < count; ++i) {
    masses[i] = std::bit_cast<uint64_t>(static_cast<double>(unrounded[i]) + kRoundMass) -
                std::bit_cast<uint64_t>(kRoundMass);
  }
}

uint64_t SumOfMasses(const float* z, size_t count) {
  float unrounded[kStretch];
  for (size_t i = 0; i < count; ++i) unrounded[i] = UnroundedMass(z[i]);
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i)
    sum += std::bit_cast<uint64_t>(static_cast<double>(unrounded[i]) + kRoundMass);
  return sum - count * std::bit_cast<uint64_t>(kRoundMass);
}

void Scale(const float* logits, size_t count, float max, float inverse_temperature, float* z) {
  for (size_t i = 0; i < count; ++i)
    z[i] = rounded::Mul(rounded::Sub(logits[i], max), inverse_temperature);
}

uint64_t MassOfRow(std::span<const float> row, float max) {
  float z[kStretch];
  uint64_t total = 0;
  for (size_t begin = 0; begin < row.size(); begin += kStretch) {
    const size_t count = std::min(kStretch, row.size() - begin);
    Scale(row.data() + begin, count, max, 1.0f, z);
    total += SumOfMasses(z, count);
  }
  return total;
}

// The `count` largest, largest first, ties to the smaller id.
void FindTop(std::span<const float> row, int count, SampledToken* out) {
  const int wanted = static_cast<int>(
      std::min<size_t>(static_cast<size_t>(std::max(count, 0)), row.size()));
  std::fill_n(out->top_tokens, kTopLogprobsMax, -1);
  if (wanted == 0) return;
  int found = 0;
  float least = kMinusInfinity;
  VisitAtLeast(row.data(), row.size(), least, [&](size_t i) {
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

// A position in the order of tokens. Every filter keeps all tokens up to one such position.
struct Cutoff {
  float z = kMinusInfinity;
  int32_t token = std::numeric_limits<int32_t>::max();
  bool operator<(const Cutoff& other) const {
    return z > other.z || (z == other.z && token < other.token);
  }
};

// The cutoff at which the amounts, added up in order, reach `left`. REQUIRES: all of them together
// do.
template <typename AmountOf>
Cutoff CutoffAmong(std::span<Cutoff> members, uint64_t left, AmountOf amount_of) {
  while (members.size() > 32) {
    const size_t half = members.size() / 2;
    std::nth_element(members.begin(), members.begin() + static_cast<ptrdiff_t>(half),
                     members.end());
    uint64_t sum = 0;
    for (const Cutoff& member : members.first(half)) sum += amount_of(member.z);
    const bool in_second_half = sum < left;
    if (in_second_half) left -= sum;
    members = in_second_half ? members.subspan(half) : members.first(half);
  }
  std::sort(members.begin(), members.end());
  for (const Cutoff& member : members) {
    const uint64_t amount = amount_of(member.z);
    if (amount >= left) return member;
    left -= amount;
  }
  return members.empty() ? Cutoff{} : members.back();
}

// The tokens of a row that filters have kept so far, by ascending id.
class Candidates {
 public:
  Candidates(std::span<const float> logits, float max, float inverse_temperature)
      : count_(logits.size()) {
    thread_local std::vector<float> z;
    thread_local std::vector<int32_t> ids;
    z.resize(std::max(z.size(), count_));
    ids.resize(std::max(ids.size(), count_));
    z_ = z.data();
    ids_ = ids.data();
    Scale(logits.data(), count_, max, inverse_temperature, z_);
  }

  void KeepTopK(int top_k) {
    if (static_cast<size_t>(top_k) >= count_) return;
    Sums counts = {};
    ForEachStretch([&](const float*, const int32_t* buckets, size_t count) {
      for (size_t i = 0; i < count; ++i) ++counts[static_cast<size_t>(buckets[i])];
    });
    Keep(CutoffOf(counts, static_cast<uint64_t>(top_k), [](float) { return uint64_t{1}; }));
  }

  void KeepTopP(uint64_t share) {
    Sums sums = {};
    ForEachStretch([&](const float* z, const int32_t* buckets, size_t count) {
      uint64_t masses[kStretch];
      Masses(z, count, masses);
      for (size_t i = 0; i < count; ++i) sums[static_cast<size_t>(buckets[i])] += masses[i];
    });
    uint64_t total = 0;
    for (uint64_t sum : sums) total += sum;
    Keep(CutoffOf(sums, LeastMass(share, total), MassOf));
  }

  void Keep(const Cutoff& cutoff) {
    size_t kept = 0;
    ForEachGroupWithin(cutoff.z, 0.0f, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        const float z = z_[i];
        const int32_t id = IdOf(i);
        z_[kept] = z;
        ids_[kept] = id;
        kept += static_cast<size_t>((z > cutoff.z) | ((z == cutoff.z) & (id <= cutoff.token)));
      }
    });
    count_ = kept;
    is_whole_row_ = false;
  }

  // Inverse of the cumulative distribution in order of ids: the first token whose cumulative mass
  // exceeds uniform * total.
  int32_t Draw(uint64_t uniform) const {
    thread_local std::vector<uint64_t> sums;
    sums.clear();
    uint64_t total = 0;
    for (size_t begin = 0; begin < count_; begin += kStretch) {
      sums.push_back(SumOfMasses(z_ + begin, std::min(kStretch, count_ - begin)));
      total += sums.back();
    }
    uint64_t target = MulHigh(uniform, total);
    size_t stretch = 0;
    while (target >= sums[stretch]) target -= sums[stretch++];
    for (size_t i = stretch * kStretch;; ++i) {
      const uint64_t mass = MassOf(z_[i]);
      if (target < mass) return IdOf(i);
      target -= mass;
    }
  }

 private:
  static constexpr float kBucketsPerUnit = 32;
  static constexpr int32_t kLastBucket = 30 * 32;  // all of mass 0
  using Sums = std::array<uint64_t, kLastBucket + 1>;

  static int32_t BucketOf(float z) {
    return static_cast<int32_t>(std::min(-z * kBucketsPerUnit, static_cast<float>(kLastBucket)));
  }

  int32_t IdOf(size_t i) const { return is_whole_row_ ? static_cast<int32_t>(i) : ids_[i]; }

  // use(z, buckets, count) for each stretch.
  template <typename Use>
  void ForEachStretch(Use use) const {
    int32_t buckets[kStretch];
    for (size_t begin = 0; begin < count_; begin += kStretch) {
      const size_t count = std::min(kStretch, count_ - begin);
      const float* z = z_ + begin;
      for (size_t i = 0; i < count; ++i) buckets[i] = BucketOf(z[i]);
      use(z, buckets, count);
    }
  }

  // use(begin, end) for each group with a z from `least` to `most`.
  template <typename Use>
  void ForEachGroupWithin(float least, float most, Use use) const {
    for (size_t begin = 0; begin < count_; begin += kGroup) {
      const size_t end = std::min(count_, begin + kGroup);
      if (AnyWithin(z_ + begin, end - begin, least, most)) use(begin, end);
    }
  }

  // Where the amounts reach `limit`; only the bucket in which they do is put in order.
  template <typename AmountOf>
  Cutoff CutoffOf(const Sums& sums, uint64_t limit, AmountOf amount_of) const {
    int32_t bucket = 0;
    while (bucket < kLastBucket && sums[static_cast<size_t>(bucket)] < limit)
      limit -= sums[static_cast<size_t>(bucket++)];
    if (bucket == kLastBucket) return Cutoff{};
    thread_local std::vector<Cutoff> members;
    members.clear();
    // A little wider than the bucket: BucketOf decides.
    const float least = -static_cast<float>(bucket + 1) / kBucketsPerUnit,
                most = -static_cast<float>(bucket) / kBucketsPerUnit;
    ForEachGroupWithin(least, most, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        if (BucketOf(z_[i]) == bucket) members.push_back({z_[i], IdOf(i)});
      }
    });
    return CutoffAmong(std::span<Cutoff>(members), limit, amount_of);
  }

  float* z_;  // <= 0, at least one is 0; both arrays are the thread's own and kept for its next row
  int32_t* ids_;  // unless is_whole_row_
  size_t count_;
  bool is_whole_row_ = true;
};

int32_t DrawToken(const SampleTask& task, std::span<const float> logits, float max) {
  Candidates candidates(logits, max, task.inverse_temperature);
  if (task.top_k > 0) candidates.KeepTopK(task.top_k);
  if (task.mass_share > 0) candidates.KeepTopP(task.mass_share);
  if (task.least_z > kMinusInfinity) candidates.Keep({.z = task.least_z});
  return candidates.Draw(task.uniform);
}

// One row's work; `adjustments` are all of the task's own.
SampledToken SampleOne(std::span<float> logits, const SampleTask& task,
                       std::span<LogitAdjustment> adjustments) {
  SampledToken out;

  // Stage 1: the extent of the row as the model gave it.
  RowExtent extent = ExtentOf(logits);
  if (!extent.finite) return out;

  // Stage 2: what log-probabilities need.
  if (task.num_top >= 0) {
    out.max = extent.max;
    out.total = MassOfRow(logits, extent.max);
    FindTop(logits, task.num_top, &out);
  }

  // Stage 3: bias, penalties and bans.
  if (task.kind == SampleKind::kScore) adjustments = {};
  for (LogitAdjustment& adjustment : adjustments) {
    float& logit = logits[static_cast<size_t>(adjustment.token)];
    adjustment.logit = logit;
    logit = AdjustLogit(logit, adjustment, task);
  }
  if (!adjustments.empty()) extent = ExtentOf(logits);
  if (!extent.finite) return out;

  // Stage 4: the token.
  out.token = task.kind == SampleKind::kScore    ? task.scored_token
              : task.kind == SampleKind::kGreedy ? FirstIndexOf(logits, extent.max)
                                                 : DrawToken(task, logits, extent.max);
  out.finite = 1;
  if (task.num_top < 0) return out;
  out.logit = logits[static_cast<size_t>(out.token)];
  for (const LogitAdjustment& adjustment : adjustments) {
    if (adjustment.token == out.token) out.logit = adjustment.logit;
  }
  return out;
}

}  // namespace

// Each row is one worker's, and a worker takes the next one when it is done with one.
void cpu::Sample(const SampleArgs& args, ThreadPool& pool) {
  DS_CHECK(args.vocab_size > 0 && args.vocab_size <= kSampledVocabMax, "rows of logits");
  if (args.num_rows == 0) return;
  std::atomic<int> next{0};
  pool.Run([&](int) {
    for (int i = next.fetch_add(1); i < args.num_rows; i = next.fetch_add(1)) {
      const SampleTask& task = args.tasks[i];
      if (task.kind == SampleKind::kNothing) continue;
      const auto vocab = static_cast<size_t>(args.vocab_size);
      args.sampled[i] = SampleOne(std::span(args.logits + static_cast<size_t>(i) * vocab, vocab),
                                  task,
                                  std::span(args.adjustments + task.first_adjustment,
                                            static_cast<size_t>(task.num_adjustments)));
    }
  });
}

}  // namespace diffserve
