// SPDX-License-Identifier: Apache-2.0
// Sampling of one token from each row of logits, and log-probabilities.
//
// Order of operations, as in vLLM: logit_bias, then repetition, frequency and presence penalties,
// then the bans of min_tokens and of a mask, then temperature, top_k, top_p, min_p, then one draw.
// temperature 0 is greedy: the largest logit, ties to the smallest id. The draw is a function of
// only (seed, sequence, position): with the same key and logits the token is the same, in any batch
// and on any device. Log-probabilities are log_softmax of the logits as the model gave them, before
// bias, penalties, bans and temperature (vLLM's default).
//
// The host packs the request for a row into a SampleTask and its LogitAdjustments, which travel to
// a device with the step's one copy. Sample executes them, and the host turns the resulting
// SampledToken into a SampleResult.
//
// *Invariants*: given the same logits, every backend and level gives the same bits, since all do
// the integer arithmetic of sample_arithmetic.h. A row with a NaN, +Inf or no finite value, before
// or after the adjustments, gives finite == 0. Without rows nothing is read or written.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/ops/sampling_types.h"
#include "kernels/ops/token_mask.h"

namespace diffserve {

enum class CpuIsa;
class ThreadPool;

inline constexpr int kTopLogprobsMax = 20;
inline constexpr int kSampledVocabMax = 1 << 22;  // the sum of this many masses fits 64 bits

enum class SampleKind : int32_t { kNothing, kDraw, kGreedy, kScore };

// The work for one row, without pointers.
struct SampleTask {
  SampleKind kind = SampleKind::kNothing;
  int32_t scored_token = 0;  // kScore
  int32_t num_top = -1;      // -1: no log-probabilities; 0..kTopLogprobsMax alternatives
  int32_t top_k = 0;         // 0: off
  uint64_t mass_share = 0;   // of top_p, in units of 2^-64; 0: off
  uint64_t uniform = 0;      // random bits of (seed, sequence, position)
  float inverse_temperature = 1;
  // For min_p: tokens with z = (logit - max) / temperature below it are excluded; -infinity: off.
  float min_z = 0;
  float repetition_penalty = 1;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  int32_t num_adjustments = 0;
  int32_t first_adjustment = 0;
  int32_t mask = -1;  // index of the row's mask in SampleArgs::masks; -1: every token is allowed
};

// How bias, penalties and bans change one token's logit. At most one per token and row.
struct LogitAdjustment {
  int32_t token = 0;
  int32_t count = -1;  // in the generated tokens; -1: the penalties do not apply
  float bias = 0;
  bool banned = false;
  float logit = 0;  // as the model gave it: written by Sample
};

// The result of a row.
struct SampledToken {
  int32_t token = 0;
  int32_t finite = 0;  // 0: SampleResult::finite is false, and the rest is meaningless
  // Set if log-probabilities are requested:
  float max = 0;       // of the logits as the model gave them
  float logit = 0;     // of `token`, as the model gave it
  uint64_t total = 0;  // mass of the row as the model gave it, at temperature 1
  int32_t top_tokens[kTopLogprobsMax] = {};  // most likely first; -1 after the last
  float top_logits[kTopLogprobsMax] = {};
};

// Inputs of a draw besides the logits.
struct DrawContext {
  const SamplingParams* params = nullptr;
  int vocab_size = 0;
  uint64_t sequence = 0;  // index of the continuation (0 .. n-1)
  uint64_t position = 0;  // of the token to draw
  std::span<const int32_t> prompt_tokens;
  std::span<const int32_t> output_tokens;
  // Not drawn now (EOS and stop ids while below min_tokens).
  std::span<const int32_t> banned_tokens;
};
// Appends the task's adjustments to `adjustments`.
SampleTask PackDraw(const DrawContext& context, std::vector<LogitAdjustment>* adjustments);
// Requests the logprob of `token` and the `num_top` most likely ids, for prompt logprobs.
SampleTask PackScore(int32_t token, int num_top);
SampleResult ToSampleResult(const SampleTask& task, const SampledToken& sampled);

struct SampleArgs {
  float* logits = nullptr;  // [num_rows, vocab_size]; rows with adjustments or a mask are changed
  int vocab_size = 0;
  int num_rows = 0;
  // [num_rows]; a row of kNothing is skipped, and its SampledToken is not written.
  const SampleTask* tasks = nullptr;
  // tasks[i] owns [first_adjustment, first_adjustment + num_adjustments).
  LogitAdjustment* adjustments = nullptr;
  // [masks, MaskWords(vocab_size)] of token_mask.h: a token that is not in its row's mask is
  // banned. Read only if a drawing task names a mask.
  const uint32_t* masks = nullptr;
  SampledToken* sampled = nullptr;  // out: [num_rows]
};

// The same bits by full sorts and the definitions of sample_arithmetic.h.
void SampleRef(const SampleArgs& args);

namespace cpu {
void Sample(const SampleArgs& args, CpuIsa isa, ThreadPool& pool);
}  // namespace cpu

namespace cuda {
class Stream;
// A launch depends only on vocab_size and num_rows, so it can be part of a graph.
Status Sample(const SampleArgs& args, const Stream& stream);
}  // namespace cuda

}  // namespace diffserve
