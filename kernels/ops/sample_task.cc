// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/ops/sample.h"
#include "kernels/ops/sample_arithmetic.h"
#include "kernels/process/check.h"

namespace diffserve {
namespace {

// Below this the distribution is a point at the largest logit, in float32 as well.
constexpr float kMinTemperature = 1e-5f;
// Reported for a token of probability 0: JSON has no -Infinity.
constexpr float kMinLogprob = -9999.0f;

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"): key = seed, counter
// = (position, sequence).
uint64_t UniformBits(uint64_t seed, uint64_t sequence, uint64_t position) {
  std::array<uint32_t, 4> counter = {
      static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
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
  return (uint64_t{counter[0]} << 32) | counter[1];
}

// Collects a row's adjustments, after those of earlier rows, in the order in which their tokens are
// first named.
class AdjustmentList {
 public:
  AdjustmentList(size_t vocab, std::vector<LogitAdjustment>* adjustments)
      : vocab_(vocab),
        adjustments_(*adjustments),
        first_(adjustments->size()),
        ordinals_(Ordinals()) {
    ordinals_.resize(std::max(ordinals_.size(), vocab));
  }
  ~AdjustmentList() {
    for (size_t i = first_; i < adjustments_.size(); ++i)
      ordinals_[static_cast<size_t>(adjustments_[i].token)] = 0;
  }
  AdjustmentList(const AdjustmentList&) = delete;
  AdjustmentList& operator=(const AdjustmentList&) = delete;

  template <typename Change>
  void At(int32_t token, Change change) {
    if (token < 0 || static_cast<size_t>(token) >= vocab_) return;
    int32_t& ordinal = ordinals_[static_cast<size_t>(token)];
    if (ordinal == 0) {
      adjustments_.push_back({.token = token});
      ordinal = static_cast<int32_t>(adjustments_.size() - first_);
    }
    change(adjustments_[first_ + static_cast<size_t>(ordinal) - 1]);
  }

 private:
  // Per token: its position in the list, counted from 1; 0 between uses.
  static std::vector<int32_t>& Ordinals() {
    thread_local std::vector<int32_t> ordinals;
    return ordinals;
  }

  const size_t vocab_;
  std::vector<LogitAdjustment>& adjustments_;
  const size_t first_;
  std::vector<int32_t>& ordinals_;
};

void CollectAdjustments(const DrawContext& context, AdjustmentList* list) {
  const SamplingParams& params = *context.params;
  for (const auto& [token, bias] : params.logit_bias) {
    list->At(token, [bias](LogitAdjustment& a) { a.bias += bias; });
  }
  if (params.uses_penalties()) {
    for (int32_t token : context.output_tokens) {
      list->At(token, [](LogitAdjustment& a) { a.count = std::max(a.count, 0) + 1; });
    }
    if (params.repetition_penalty != 1.0f) {
      for (int32_t token : context.prompt_tokens)
        list->At(token, [](LogitAdjustment& a) { a.count = std::max(a.count, 0); });
    }
  }
  for (int32_t token : context.banned_tokens)
    list->At(token, [](LogitAdjustment& a) { a.banned = true; });
}

float Logprob(float logit, double log_sum_exp) {
  return std::max(static_cast<float>(static_cast<double>(logit) - log_sum_exp), kMinLogprob);
}

}  // namespace

SampleTask PackDraw(const DrawContext& context, std::vector<LogitAdjustment>* adjustments) {
  DS_CHECK(
      context.vocab_size > 0 && context.vocab_size <= kSampledVocabMax && context.params != nullptr,
      "a vocabulary and parameters");
  const size_t vocab = static_cast<size_t>(context.vocab_size);
  const SamplingParams& params = *context.params;
  SampleTask task;
  const bool greedy = params.temperature < kMinTemperature || params.top_k == 1;
  task.kind = greedy ? SampleKind::kGreedy : SampleKind::kDraw;
  task.num_top = std::clamp(params.num_logprobs, -1, kTopLogprobsMax);
  task.first_adjustment = static_cast<int32_t>(adjustments->size());
  if (!params.logit_bias.empty() || !context.banned_tokens.empty() || params.uses_penalties()) {
    AdjustmentList list(vocab, adjustments);
    CollectAdjustments(context, &list);
  }
  task.num_adjustments = static_cast<int32_t>(adjustments->size()) - task.first_adjustment;
  task.repetition_penalty = params.repetition_penalty;
  task.frequency_penalty = params.frequency_penalty;
  task.presence_penalty = params.presence_penalty;
  if (greedy) return task;
  task.inverse_temperature = 1.0f / std::min(params.temperature, std::numeric_limits<float>::max());
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < vocab) task.top_k = params.top_k;
  // A float below 1 times 2^64 is below 2^64.
  if (params.top_p < 1.0f)
    task.mass_share = std::max<uint64_t>(1, static_cast<uint64_t>(std::ldexp(params.top_p, 64)));
  task.min_z = params.min_p > 0 ? std::min(std::log(params.min_p), 0.0f)
                                : -std::numeric_limits<float>::infinity();
  task.uniform = UniformBits(params.seed, context.sequence, context.position);
  return task;
}

SampleTask PackScore(int32_t token, int num_top) {
  SampleTask task;
  task.kind = SampleKind::kScore;
  task.scored_token = token;
  task.num_top = std::clamp(num_top, 0, kTopLogprobsMax);
  return task;
}

SampleResult ToSampleResult(const SampleTask& task, const SampledToken& sampled) {
  SampleResult result;
  result.token = sampled.token;
  result.finite = sampled.finite != 0;
  if (!result.finite || task.num_top < 0) return result;
  const double log_sum_exp = sampled.max +
                             std::log(std::ldexp(static_cast<double>(sampled.total), -kMassBits));
  result.logprob = Logprob(sampled.logit, log_sum_exp);
  for (int i = 0; i < task.num_top && sampled.top_tokens[i] >= 0; ++i) {
    result.top_logprobs.push_back(
        {sampled.top_tokens[i], Logprob(sampled.top_logits[i], log_sum_exp)});
  }
  return result;
}

}  // namespace diffserve
