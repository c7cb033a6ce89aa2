// The work of sample.h on one row as plain data, compiled by the host's compilers and by nvcc. The
// host packs a row, the CPU or the GPU does what it says, and the host makes a result of what came
// back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops/sample.h"

namespace diffserve {

inline constexpr int kTopLogprobsMax = 20;
inline constexpr int kSampledVocabMax = 1 << 22;  // a sum of so many masses fits 64 bits
                                                  // (sample_arithmetic.h)

enum class SampleKind : int32_t { kNothing, kDraw, kGreedy, kScore };

// One row, without pointers.
struct SampleRow {
  SampleKind kind = SampleKind::kNothing;
  int32_t scored_token = 0;  // kScore
  int32_t num_top = -1;      // -1: no log-probabilities; 0..kTopLogprobsMax alternatives
  int32_t top_k = 0;         // 0: off
  uint64_t mass_share = 0;   // of top_p, in 2^-64; 0: off
  uint64_t uniform = 0;      // random bits of (seed, sequence, position)
  float inverse_temperature = 1;
  float least_z = 0;  // of min_p: tokens with z = (logit - max) / temperature below it are out;
                      // -infinity: off
  float repetition_penalty = 1;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  int32_t num_adjustments = 0;
  int32_t first_adjustment = 0;
};

// What bias, penalties and bans do to one token's logit. Each token at most once a row.
struct LogitAdjustment {
  int32_t token = 0;
  int32_t count = -1;  // in the generated tokens; -1: the penalties do not apply
  float bias = 0;
  bool banned = false;
  float logit = 0;  // as the model gave it, where the GPU changes the row: written by the kernel
};

// What comes back of a row.
struct SampledRow {
  int32_t token = 0;
  int32_t finite = 0;  // 0: SampleResult::finite is false, and the rest means nothing
  // If log-probabilities are wanted:
  float max = 0;       // of the logits as the model gave them
  float logit = 0;     // of `token`, as the model gave it
  uint64_t total = 0;  // mass of the row as the model gave it, at temperature 1
  int32_t top_tokens[kTopLogprobsMax] = {};  // most likely first; -1 behind the last
  float top_logits[kTopLogprobsMax] = {};
};

// Appends the row's adjustments to `adjustments`. `args.logits` is not read; its size is the
// vocabulary's.
SampleRow PackSampleRow(const SampleArgs& args, std::vector<LogitAdjustment>* adjustments);
SampleRow PackScoreRow(int32_t token, int num_top);
SampleResult ToSampleResult(const SampleRow& row, const SampledRow& sampled);

namespace cpu {
// One row's work on the CPU. `logits` is [vocab]; `adjustments` are all of the row's own.
SampledRow SampleRow(std::span<const float> logits, const diffserve::SampleRow& row,
                     std::span<const LogitAdjustment> adjustments);
}  // namespace cpu

}  // namespace diffserve
