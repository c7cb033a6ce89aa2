// Everything here is plain scalar C++ with sums in a fixed order and an exponential of its own, so that a draw has the same bits
// on every machine, whichever instruction set the other kernels use.
#include "kernels/ops/sample.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/base/check.h"

namespace diffserve {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kMinTemperature = 1e-5f;   // below this the distribution is the largest logit, in float32 as well
constexpr float kMinLogprob = -9999.0f;    // reported for a token of probability 0: JSON has no -Infinity
constexpr size_t kSpan = 256;              // tokens whose weights are added up before they go into the running total

// exp(x) for x <= 0, relative error below 2e-7; 0 from -87 down. The range is applied by arithmetic on the bits: a comparison
// would become a branch and keep a loop over it from being vectorized.
inline float ExpNonPositive(float x) {
  constexpr int32_t kLimit = std::bit_cast<int32_t>(87.0f);
  const int32_t below = (std::bit_cast<int32_t>(x) & 0x7fffffff) - kLimit;
  const int32_t in_range = below >> 31;  // all ones or 0
  const float clamped = -std::bit_cast<float>(kLimit + (below & in_range));
  const float shifted = clamped * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: the sum's low bits are the rounded integer
  const float n = shifted - 12582912.0f;
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;  // ln 2 in two parts
  float p = 1.98412698e-4f;
  p = p * r + 1.38888889e-3f;
  p = p * r + 8.33333333e-3f;
  p = p * r + 4.16666667e-2f;
  p = p * r + 1.66666667e-1f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const int32_t exponent = (std::bit_cast<int32_t>(shifted) - 0x4b400000 + 127) << 23;
  return std::bit_cast<float>(std::bit_cast<int32_t>(p * std::bit_cast<float>(exponent)) & in_range);
}

// Pointers here and below, where a span's checks would keep a loop from being vectorized.
void ExpNonPositive(const float* x, size_t count, float shift, float* out) {
  for (size_t i = 0; i < count; ++i) out[i] = ExpNonPositive(x[i] - shift);
}

// In a fixed order that four additions at a time follow.
double Sum(const float* values, size_t count) {
  double sums[4] = {};
  const size_t whole = count - count % 4;
  for (size_t i = 0; i < whole; i += 4) {
    for (size_t lane = 0; lane < 4; ++lane) sums[lane] += values[i + lane];
  }
  for (size_t i = whole; i < count; ++i) sums[0] += values[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

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
  extent.finite = std::all_of(nans, nans + kLanes, [](int32_t nan) { return nan == 0; }) && std::isfinite(extent.max);
  return extent;
}

int32_t FirstIndexOf(std::span<const float> row, float value) {
  return static_cast<int32_t>(std::find(row.begin(), row.end(), value) - row.begin());
}

// log(sum(exp(row))).
double LogSumExp(std::span<const float> row, float max) {
  std::array<float, kSpan> weights;
  double total = 0;
  for (size_t begin = 0; begin < row.size(); begin += kSpan) {
    const size_t count = std::min(kSpan, row.size() - begin);
    ExpNonPositive(row.data() + begin, count, max, weights.data());
    total += Sum(weights.data(), count);
  }
  return max + std::log(total);
}

float Logprob(float logit, double log_sum_exp) {
  return std::max(static_cast<float>(static_cast<double>(logit) - log_sum_exp), kMinLogprob);
}

// The `count` largest, largest first, ties to the smaller id.
std::vector<TokenLogprob> TopLogprobs(std::span<const float> row, int count, double log_sum_exp) {
  const size_t size = std::min<size_t>(std::max(count, 0), row.size());
  std::vector<TokenLogprob> top;  // holds logits until the end
  if (size == 0) return top;
  top.reserve(size + 1);
  const float* values = row.data();
  float least = kMinusInfinity;  // in `top`, once it is full
  for (size_t i = 0; i < row.size(); ++i) {
    if (values[i] <= least && top.size() == size) continue;
    const auto place = std::upper_bound(top.begin(), top.end(), values[i],
                                        [](float value, const TokenLogprob& t) { return value > t.logprob; });
    top.insert(place, {static_cast<int32_t>(i), values[i]});
    if (top.size() > size) top.pop_back();
    least = top.back().logprob;
  }
  for (TokenLogprob& t : top) t.logprob = Logprob(t.logprob, log_sum_exp);
  return top;
}

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"): key = seed, counter = (position, sequence).
// Returns a number in [0, 1) with 53 bits.
double UniformDraw(uint64_t seed, uint64_t sequence, uint64_t position) {
  std::array<uint32_t, 4> counter = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
                                     static_cast<uint32_t>(sequence), static_cast<uint32_t>(sequence >> 32)};
  std::array<uint32_t, 2> key = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  const uint64_t bits = (uint64_t{counter[0]} << 32) | counter[1];
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

bool UsesPenalties(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.frequency_penalty != 0.0f || params.presence_penalty != 0.0f;
}

void ApplyPenalties(const SampleArgs& args, std::vector<float>& row) {
  const SamplingParams& params = *args.params;
  const auto vocab = static_cast<int32_t>(row.size());
  thread_local std::vector<int32_t> counts;  // of generated tokens + 1 for a token seen at all; zero between calls
  thread_local std::vector<int32_t> seen;
  counts.resize(std::max(counts.size(), row.size()));
  seen.clear();
  const auto visit = [&](std::span<const int32_t> tokens, int32_t weight) {
    for (int32_t token : tokens) {
      if (token < 0 || token >= vocab) continue;
      if (counts[token] == 0) {
        seen.push_back(token);
        counts[token] = 1;
      }
      counts[token] += weight;
    }
  };
  visit(args.output_tokens, 1);
  if (params.repetition_penalty != 1.0f) visit(args.prompt_tokens, 0);
  for (int32_t token : seen) {
    float& logit = row[token];
    logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    const int32_t generated = counts[token] - 1;
    logit -= params.frequency_penalty * static_cast<float>(generated);
    if (generated > 0) logit -= params.presence_penalty;
    logit = std::min(logit, std::numeric_limits<float>::max());  // a tiny repetition penalty must not look like a broken model
    counts[token] = 0;
  }
}

// The row after logit_bias, penalties and bans: `scratch`, or the row as given if none of them is used.
std::span<const float> AdjustedLogits(const SampleArgs& args, std::vector<float>& scratch) {
  const SamplingParams& params = *args.params;
  if (params.logit_bias.empty() && args.banned_tokens.empty() && !UsesPenalties(params)) return args.logits;
  scratch.assign(args.logits.begin(), args.logits.end());
  const auto vocab = static_cast<int32_t>(scratch.size());
  for (const auto& [token, bias] : params.logit_bias) {
    if (token >= 0 && token < vocab) scratch[token] += bias;
  }
  if (UsesPenalties(params)) ApplyPenalties(args, scratch);
  for (int32_t token : args.banned_tokens) {
    if (token >= 0 && token < vocab) scratch[token] = kMinusInfinity;
  }
  return scratch;
}

// A place in the order "larger z first, ties to the smaller id". Every filter keeps all tokens up to one such place.
struct Cutoff {
  float z = kMinusInfinity;
  int32_t token = std::numeric_limits<int32_t>::max();
  bool Keeps(float other_z, int32_t other_token) const {
    return (other_z > z) | ((other_z == z) & (other_token <= token));
  }
};

// Finds cutoffs without sorting the vocabulary: tokens are counted in buckets of z, and only the bucket in which a limit is
// reached is put in order. z = (logit - max) / temperature <= 0, weight = exp(z).
class Nucleus {
 public:
  Nucleus(std::span<const float> z, std::span<const float> weights) : z_(z), weights_(weights) {}

  Cutoff Find(const SamplingParams& params) {
    Cutoff cutoff;
    if (params.top_k > 0 && static_cast<size_t>(params.top_k) < z_.size()) cutoff = AfterCount(params.top_k);
    if (params.top_p < 1.0f) cutoff = AfterMass(params.top_p, cutoff);
    if (params.min_p > 0) {
      // exp(z) >= min_p, as the largest weight is exp(0) = 1.
      const float least = std::min(std::log(params.min_p), 0.0f);
      if (cutoff.z < least) cutoff = Cutoff{.z = least};
    }
    return cutoff;
  }

 private:
  static constexpr float kBucketsPerUnit = 32;
  static constexpr size_t kLastBucket = 88 * 32;  // all of weight 0
  static size_t BucketOf(float z) {
    const float place = std::min(-z * kBucketsPerUnit, static_cast<float>(kLastBucket));
    return static_cast<size_t>(static_cast<int32_t>(place));
  }

  // The kept tokens of one bucket in order.
  std::span<const Cutoff> Ordered(size_t bucket, const Cutoff& cutoff) {
    thread_local std::vector<Cutoff> members;
    members.clear();
    const float above = -static_cast<float>(bucket + 1) / kBucketsPerUnit;  // a little wider than the bucket: BucketOf decides
    for (size_t i = 0; i < z_.size(); ++i) {
      const auto token = static_cast<int32_t>(i);
      if (z_[i] >= above && BucketOf(z_[i]) == bucket && cutoff.Keeps(z_[i], token)) members.push_back({z_[i], token});
    }
    std::sort(members.begin(), members.end(),
              [](const Cutoff& a, const Cutoff& b) { return a.z > b.z || (a.z == b.z && a.token < b.token); });
    return members;
  }

  Cutoff AfterCount(int count) {
    std::array<int, kLastBucket + 1> counts{};
    for (float z : z_) ++counts[BucketOf(z)];
    size_t bucket = 0;
    int left = count;
    while (bucket < kLastBucket && counts[bucket] < left) left -= counts[bucket++];
    if (bucket == kLastBucket) return Cutoff{};
    return Ordered(bucket, Cutoff{})[left - 1];
  }

  // The fewest tokens that hold at least `share` of the mass that `cutoff` keeps, and at least one.
  Cutoff AfterMass(float share, const Cutoff& cutoff) {
    std::array<double, kLastBucket + 1> masses{};
    size_t last = 0;  // non-empty bucket
    double total = 0;
    for (size_t i = 0; i < z_.size(); ++i) {
      if (!cutoff.Keeps(z_[i], static_cast<int32_t>(i))) continue;
      const size_t bucket = BucketOf(z_[i]);
      masses[bucket] += weights_[i];
      if (weights_[i] > 0) last = std::max(last, bucket);
    }
    for (double mass : masses) total += mass;
    double left = static_cast<double>(share) * total;
    size_t bucket = 0;
    while (bucket < last && masses[bucket] < left) left -= masses[bucket++];
    const std::span<const Cutoff> ordered = Ordered(bucket, cutoff);
    for (const Cutoff& place : ordered) {
      left -= weights_[place.token];
      if (left <= 0) return place;
    }
    return ordered.empty() ? cutoff : ordered.back();
  }

  std::span<const float> z_;
  std::span<const float> weights_;
};

// Inverse of the cumulative distribution in order of ids: the first token whose cumulative weight exceeds uniform * total.
int32_t DrawByWeight(std::span<const float> weights, double uniform) {
  thread_local std::vector<double> span_sums;
  span_sums.clear();
  double total = 0;
  for (size_t begin = 0; begin < weights.size(); begin += kSpan) {
    span_sums.push_back(Sum(weights.data() + begin, std::min(kSpan, weights.size() - begin)));
    total += span_sums.back();
  }
  double target = uniform * total;
  int32_t last = 0;  // of positive weight so far: taken if rounding leads past the end
  for (size_t s = 0; s < span_sums.size(); ++s) {
    const bool is_last = s + 1 == span_sums.size();
    if (!is_last && target >= span_sums[s]) {
      target -= span_sums[s];
      continue;
    }
    const size_t end = std::min(weights.size(), (s + 1) * kSpan);
    for (size_t i = s * kSpan; i < end; ++i) {
      if (weights[i] <= 0) continue;
      last = static_cast<int32_t>(i);
      if (target < weights[i]) return last;
      target -= weights[i];
    }
  }
  if (weights[last] <= 0) {
    for (size_t i = weights.size(); i-- > 0;) {
      if (weights[i] > 0) return static_cast<int32_t>(i);
    }
  }
  return last;
}

int32_t DrawToken(const SampleArgs& args, std::span<const float> logits, float max) {
  const SamplingParams& params = *args.params;
  thread_local std::vector<float> z, weights;
  z.resize(logits.size());
  weights.resize(logits.size());
  const auto count = static_cast<int32_t>(logits.size());
  const float temperature = params.temperature;
  const float* from = logits.data();
  float* to = z.data();
  for (int32_t i = 0; i < count; ++i) to[i] = (from[i] - max) / temperature;
  ExpNonPositive(z.data(), z.size(), 0.0f, weights.data());
  if (params.top_k > 0 || params.top_p < 1.0f || params.min_p > 0) {
    const Cutoff cutoff = Nucleus(z, weights).Find(params);
    float* weight = weights.data();
    for (int32_t i = 0; i < count; ++i) weight[i] = cutoff.Keeps(to[i], i) ? weight[i] : 0.0f;
  }
  return DrawByWeight(weights, UniformDraw(params.seed, args.sequence, args.position));
}

}  // namespace

SampleResult Sample(const SampleArgs& args) {
  DS_CHECK(!args.logits.empty() && args.params != nullptr, "a row of logits and its parameters");
  SampleResult result;
  const SamplingParams& params = *args.params;
  const RowExtent raw = ExtentOf(args.logits);
  result.finite = raw.finite;
  if (!raw.finite) return result;

  thread_local std::vector<float> scratch;
  const std::span<const float> logits = AdjustedLogits(args, scratch);
  const RowExtent adjusted = logits.data() == args.logits.data() ? raw : ExtentOf(logits);
  result.finite = adjusted.finite;
  if (!adjusted.finite) return result;

  const bool greedy = params.temperature < kMinTemperature || params.top_k == 1;
  result.token = greedy ? FirstIndexOf(logits, adjusted.max) : DrawToken(args, logits, adjusted.max);
  if (params.num_logprobs >= 0) {
    const double log_sum_exp = LogSumExp(args.logits, raw.max);
    result.logprob = Logprob(args.logits[result.token], log_sum_exp);
    result.top_logprobs = TopLogprobs(args.logits, params.num_logprobs, log_sum_exp);
  }
  return result;
}

SampleResult ScoreToken(std::span<const float> logits, int32_t token, int num_top) {
  DS_CHECK(token >= 0 && static_cast<size_t>(token) < logits.size(), "a scored token lies in the vocabulary");
  SampleResult result;
  result.token = token;
  const RowExtent extent = ExtentOf(logits);
  result.finite = extent.finite;
  if (!extent.finite) return result;
  const double log_sum_exp = LogSumExp(logits, extent.max);
  result.logprob = Logprob(logits[token], log_sum_exp);
  result.top_logprobs = TopLogprobs(logits, num_top, log_sum_exp);
  return result;
}

}  // namespace diffserve
