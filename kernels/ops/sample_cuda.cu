// SPDX-License-Identifier: Apache-2.0
// One thread block per row, a few passes over its logits. All sums are of integers, so no result
// depends on the order of threads.
#include "kernels/base/cuda/launch.cuh"
#include "kernels/base/cuda/ptx.cuh"
#include "kernels/ops/sample.h"
#include "kernels/ops/sample_arithmetic.h"
#include "kernels/ops/sample_threads.cuh"
#include "kernels/process/check.h"

namespace diffserve::cuda {

// ---- Keys: a smaller key is earlier in the order; equal keys are ordered by id.

constexpr uint32_t kKeyMax = 0xffffffffu;

// Ascending with the logit; minus zero as zero. REQUIRES: no NaN.
__device__ __forceinline__ uint32_t OrderedBits(float logit) {
  const uint32_t bits = std::bit_cast<uint32_t>(rounded::Add(logit, 0.0f));
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// The order in which filters keep tokens: z descending.
struct ZOrder {
  float max;
  float inverse_temperature;
  __device__ __forceinline__ uint32_t KeyOf(float logit) const {
    return std::bit_cast<uint32_t>(rounded::Mul(rounded::Sub(logit, max), inverse_temperature)) &
           0x7fffffffu;
  }
  __device__ __forceinline__ uint64_t MassOfKey(uint32_t key) const {
    return MassOf(-std::bit_cast<float>(key));
  }
};

// The order of the logits themselves, descending.
struct LogitOrder {
  uint32_t max;  // ordered bits
  __device__ __forceinline__ uint32_t KeyOf(float logit) const { return max - OrderedBits(logit); }
  __device__ __forceinline__ uint64_t MassOfKey(uint32_t) const { return 0; }
};

// All tokens with a smaller key, and those with this key up to `token`.
struct KeyCutoff {
  uint32_t key = kKeyMax;
  int32_t token = std::numeric_limits<int32_t>::max();
  __device__ __forceinline__ bool Keeps(uint32_t other, int32_t id) const {
    return other < key || (other == key && id <= token);
  }
};

// ---- The largest logit.

struct DeviceExtent {
  uint32_t max_bits;  // ordered
  int32_t first;      // the smallest id of a token that has it
  bool finite;        // no NaN, no +Inf, at least one finite value
  __device__ __forceinline__ float max() const {
    return std::bit_cast<float>((max_bits >> 31) != 0 ? max_bits & 0x7fffffffu : ~max_bits);
  }
};

template <int kThreads>
__device__ __forceinline__ DeviceExtent ExtentOf(SampleThreads<kThreads>& threads,
                                                 const float* logits, int vocab) {
  float max = -std::numeric_limits<float>::infinity();
  int first = 0;
  bool has_nan = false;
  // In ascending order of ids.
  ForEachLogit(logits, {0, vocab}, threads.AsWalker(), [&](int i, float logit) {
    first = logit > max ? i : first;
    max = logit > max ? logit : max;
    has_nan |= logit != logit;
  });
  const uint32_t bits = has_nan ? kKeyMax : OrderedBits(max);
  const uint64_t best = threads.Max((uint64_t{bits} << 32) |
                                    (0xffffffffu - static_cast<uint32_t>(first)));
  DeviceExtent extent;
  extent.max_bits = static_cast<uint32_t>(best >> 32);
  extent.first = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(best));
  // Between the ordered bits of both infinities.
  extent.finite = extent.max_bits > 0x007fffffu && extent.max_bits < 0xff800000u;
  return extent;
}

// ---- Selection: a histogram over parts of the key's range finds the part in which the limit is
// reached, and repeats within that part.

// The tokens with keys from `first` to `last`.
struct KeyRange {
  uint32_t first;
  uint32_t last;
};

struct Limit {
  bool by_mass;     // else by count
  uint64_t amount;  // at least 1
};

// The tokens before the cutoff.
struct Selection {
  uint32_t key;
  uint32_t ties;       // kept tokens with that key; kKeyMax: all
  uint64_t kept_mass;  // if masses were requested
};

template <int kThreads, typename Order>
class Selector {
 public:
  __device__ Selector(SampleThreads<kThreads>& threads, const float* logits, int vocab,
                      const Order& order)
      : threads_(threads), logits_(logits), vocab_(vocab), order_(order) {}

  // The key at which the limit is reached. `range` contains it; `kept_mass` counts every key below
  // range.first.
  __device__ __forceinline__ Selection Narrow(KeyRange range, Limit limit, uint64_t mass_before,
                                              bool with_masses) {
    for (;;) {
      int shift = 0;
      while (((range.last - range.first) >> shift) >= kSampleBuckets) ++shift;
      Count(with_masses, [&](uint32_t key) {
        return key - range.first <= range.last - range.first
                   ? static_cast<int>((key - range.first) >> shift)
                   : -1;
      });
      const FoundBucket found = threads_.FindBucket(limit.by_mass, with_masses,
                                                    [&](uint64_t) { return limit.amount; });
      limit.amount -= limit.by_mass ? found.mass_before : found.count_before;
      mass_before += found.mass_before;
      range.first += static_cast<uint32_t>(found.bucket) << shift;
      const uint32_t end = range.first + ((1u << shift) - 1);
      range.last = end < range.last ? end : range.last;
      if (limit.amount == (limit.by_mass ? found.mass : found.count) || found.count == 1) {
        return {range.last, kKeyMax, mass_before + found.mass};
      }
      if (shift > 0) continue;
      const uint64_t mass = order_.MassOfKey(range.first);
      const uint64_t ties = limit.by_mass ? (limit.amount + mass - 1) / mass : limit.amount;
      if (ties >= found.count) return {range.first, kKeyMax, mass_before + found.mass};
      return {range.first, static_cast<uint32_t>(ties), mass_before + ties * mass};
    }
  }

  // For ZOrder. The first histogram has parts of equal widths in z, since most tokens are within a
  // few powers of two.
  template <typename LimitOf>
  __device__ __forceinline__ Selection SelectZ(bool by_mass, bool with_masses, uint32_t key_max,
                                               LimitOf limit_of) {
    Count(with_masses, [&](uint32_t key) { return key <= key_max ? LinearBucket(key) : -1; });
    uint64_t total = 0;
    const FoundBucket found = threads_.FindBucket(by_mass, with_masses, [&](uint64_t sum) {
      total = sum;
      return limit_of(sum);
    });
    const uint64_t limit = limit_of(total) - (by_mass ? found.mass_before : found.count_before);
    // Tokens of mass 0 may stay.
    if (found.bucket == kSampleBuckets - 1) return {kKeyMax, kKeyMax, found.mass_before};
    const uint32_t end =
        std::bit_cast<uint32_t>(static_cast<float>(found.bucket + 1) / kBucketsPerUnit) - 1;
    const KeyRange range = {
        std::bit_cast<uint32_t>(static_cast<float>(found.bucket) / kBucketsPerUnit),
        end < key_max ? end : key_max};
    if (limit == (by_mass ? found.mass : found.count) || found.count == 1) {
      return {range.last, kKeyMax, found.mass_before + found.mass};
    }
    return Narrow(range, {by_mass, limit}, found.mass_before, with_masses);
  }

  __device__ __forceinline__ KeyCutoff ToCutoff(const Selection& selection) {
    KeyCutoff cutoff = {.key = selection.key};
    if (selection.ties != kKeyMax) {
      cutoff.token = FindFirst(
          threads_, logits_, vocab_,
          [&](int, float logit) {
            return uint64_t{order_.KeyOf(logit) == selection.key ? 1u : 0u};
          },
          [&](uint64_t) { return uint64_t{selection.ties} - 1; });
    }
    return cutoff;
  }

 private:
  static constexpr float kBucketsPerUnit = 64;
  static_assert(kSampleBuckets / kBucketsPerUnit > 31, "all of the last part has mass 0");

  // `key` is the bits of |z| as a float.
  __device__ static __forceinline__ int LinearBucket(uint32_t key) {
    const float scaled = std::bit_cast<float>(key) * kBucketsPerUnit;
    return scaled < static_cast<float>(kSampleBuckets - 1) ? static_cast<int>(scaled)
                                                           : kSampleBuckets - 1;
  }

  // bucket_of(key): -1 to skip the key.
  template <typename BucketOf>
  __device__ __forceinline__ void Count(bool with_masses, BucketOf bucket_of) {
    threads_.ClearBuckets();
    ForEachLogit(logits_, {0, vocab_}, threads_.AsWalker(), [&](int, float logit) {
      const uint32_t key = order_.KeyOf(logit);
      const int bucket = bucket_of(key);
      if (bucket >= 0) threads_.AddToBucket(bucket, with_masses ? order_.MassOfKey(key) : 0);
    });
    threads_.Synchronize();
  }

  SampleThreads<kThreads>& threads_;
  const float* logits_;
  const int vocab_;
  const Order order_;
};

// ---- The stages of a row.

// Sets max, total and the alternatives of the result. REQUIRES: right after ExtentOf.
template <int kThreads>
__device__ __forceinline__ void Logprobs(SampleThreads<kThreads>& threads, const float* logits,
                                         int vocab, const DeviceExtent& extent, int num_top,
                                         SampledToken* out) {
  const float max = extent.max();
  const int wanted = num_top < vocab ? num_top : vocab;
  // At least this many warps, and so at least this many tokens, have a logit >= the bound.
  const uint32_t bound = wanted > 0 ? static_cast<uint32_t>(threads.LargestOfWarps(wanted) >> 32)
                                    : 0;
  uint64_t sum = 0;
  ForEachLogit(logits, {0, vocab}, threads.AsWalker(),
               [&](int, float logit) { sum += MassOf(rounded::Sub(logit, max)); });
  sum = threads.Sum(sum);
  if (threadIdx.x == 0) {
    out->max = max;
    out->total = sum;
  }
  if (wanted > 0) {
    const LogitOrder order = {extent.max_bits};
    Selector<kThreads, LogitOrder> selector(threads, logits, vocab, order);
    const Selection selection = selector.Narrow({0, extent.max_bits - bound},
                                                {false, static_cast<uint64_t>(wanted)}, 0, false);
    const KeyCutoff cutoff = selector.ToCutoff(selection);
    threads.ClearList();
    ForEachLogit(logits, {0, vocab}, threads.AsWalker(), [&](int i, float logit) {
      const uint32_t key = order.KeyOf(logit);
      if (cutoff.Keeps(key, i)) threads.AddToList({key, i, logit});
    });
    threads.Synchronize();
    threads.WriteSorted(wanted, out);
  }
  for (int i = wanted + static_cast<int>(threadIdx.x); i < kTopLogprobsMax; i += kThreads) {
    out->top_tokens[i] = -1;
    out->top_logits[i] = 0;
  }
}

template <int kThreads>
__device__ __forceinline__ int32_t DrawToken(SampleThreads<kThreads>& threads, const float* logits,
                                             int vocab, float max, const SampleTask& task) {
  const ZOrder order = {max, task.inverse_temperature};
  Selector<kThreads, ZOrder> selector(threads, logits, vocab, order);
  Selection selection = {kKeyMax, kKeyMax, 0};
  if (task.top_k > 0) {
    selection = selector.SelectZ(false, task.mass_share > 0, kKeyMax,
                                 [&](uint64_t) { return static_cast<uint64_t>(task.top_k); });
  }
  if (task.mass_share > 0) {
    // The tokens kept by top_k contain the cutoff, so its ties need not be separated before.
    const uint64_t kept = selection.kept_mass;
    selection = selector.SelectZ(true, true, selection.key, [&](uint64_t total) {
      return MinMass(task.mass_share, task.top_k > 0 ? kept : total);
    });
  }
  const uint32_t min_key = std::bit_cast<uint32_t>(task.min_z) & 0x7fffffffu;
  if (min_key < selection.key) selection = {min_key, kKeyMax, 0};
  const KeyCutoff cutoff = selector.ToCutoff(selection);
  return FindFirst(
      threads, logits, vocab,
      [&](int i, float logit) {
        const uint32_t key = order.KeyOf(logit);
        return cutoff.Keeps(key, i) ? order.MassOfKey(key) : 0;
      },
      [&](uint64_t total) { return MulHigh(task.uniform, total); });
}

// Grid: rows.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) SampleKernel(SampleArgs args) {
  const SampleTask task = args.tasks[blockIdx.x];
  if (task.kind == SampleKind::kNothing) return;
  const int vocab = args.vocab_size;
  float* logits = args.logits + static_cast<int64_t>(blockIdx.x) * vocab;
  LogitAdjustment* adjustments = args.adjustments + task.first_adjustment;
  SampledToken* out = args.sampled + blockIdx.x;
  SampleThreads<kThreads> threads;

  // Stage 1: the extent of the row as the model gave it.
  DeviceExtent extent = ExtentOf(threads, logits, vocab);
  if (threadIdx.x == 0) out->token = out->finite = 0;
  if (!extent.finite) return;

  // Stage 2: the inputs of log-probabilities.
  if (task.num_top >= 0) Logprobs(threads, logits, vocab, extent, task.num_top, out);

  // Stage 3: bias, penalties and bans.
  const bool draws = task.kind != SampleKind::kScore;
  const int num_adjustments = draws ? task.num_adjustments : 0;
  const bool is_masked = draws && task.mask >= 0;
  if (num_adjustments > 0 || is_masked) {
    threads.Synchronize();
    for (int i = static_cast<int>(threadIdx.x); i < num_adjustments; i += kThreads) {
      LogitAdjustment& adjustment = adjustments[i];
      adjustment.logit = logits[adjustment.token];
      logits[adjustment.token] = AdjustLogit(adjustment.logit, adjustment, task);
    }
    threads.Synchronize();
    if (is_masked) {
      const uint32_t* mask = args.masks + static_cast<size_t>(task.mask) * MaskWords(vocab);
      threads.BanUnmasked(logits, mask, vocab);
    }
    extent = ExtentOf(threads, logits, vocab);
    if (!extent.finite) return;
  }

  // Stage 4: the token.
  const int32_t token = task.kind == SampleKind::kScore ? task.scored_token
                        : task.kind == SampleKind::kGreedy
                            ? extent.first
                            : DrawToken(threads, logits, vocab, extent.max(), task);
  if (threadIdx.x == 0) {
    out->token = token;
    out->finite = 1;
    if (task.num_top >= 0) out->logit = logits[token];
  }
  if (task.num_top >= 0 && num_adjustments > 0) {
    threads.Synchronize();
    for (int i = static_cast<int>(threadIdx.x); i < num_adjustments; i += kThreads) {
      if (adjustments[i].token == token) out->logit = adjustments[i].logit;
    }
  }
}

Status Sample(const SampleArgs& args, const Stream& stream) {
  DS_CHECK(args.vocab_size > 0 && args.vocab_size <= kSampledVocabMax, "rows of logits");
  if (args.num_rows == 0) return Status();
  constexpr int kSmallVocab = 2048;
  const bool is_small = args.vocab_size <= kSmallVocab;
  const LaunchShape shape = {dim3(static_cast<unsigned>(args.num_rows)),
                             dim3(is_small ? 128 : 1024), sizeof(SampleShared)};
  return Launch("Sample", shape, stream, is_small ? SampleKernel<128> : SampleKernel<1024>, args);
}

}  // namespace diffserve::cuda
