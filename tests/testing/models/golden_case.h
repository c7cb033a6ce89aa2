// SPDX-License-Identifier: Apache-2.0
// Golden cases (tests/golden/make_golden.py), and the five ways in which a server may run a
// sequence. All five must give the same logits; the expected ones come from the authors' code.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/attention/diff_attention.h"
#include "models/model.h"
#include "models/safetensors.h"

namespace diffserve {

constexpr double kGoldenFloat32Tolerance = 1e-4;  // relative to the largest logit
constexpr double kGoldenBFloat16Share = 2.0;      // relative to the reference's own error in
                                                  // bfloat16
constexpr double kGoldenFloat16Share = 0.25;      // relative to the same: float16 has three more
                                                  // bits
// Quantised linear layers, relative to the same.
constexpr double kGoldenInt8Share = 8.0;
struct GoldenPagesShare {
  DType pages;
  double share;
};
constexpr GoldenPagesShare kGoldenPagesShares[] = {
    {DType::kInt8, 3.0}, {DType::kInt8KInt4V, 12.0}, {DType::kInt4, 24.0}, {DType::kFp8E4M3, 8.0}};
constexpr double kGoldenInt4Share = 50.0;
constexpr double kGoldenFp8Share = 16.0;  // with activations
constexpr int kGoldenPageSize = 16;

// Some cases have heads that are not whole packs of four bits; only GPUs have fp8.
bool HasPagesOf(const Model& model, DType pages);

struct GoldenCase {
  std::string name, dir;
  std::string family;     // "diff", "unilm_v1": what its name begins with
  std::string reference;  // which code made the numbers
  int vocab = 0;
  std::vector<int32_t> prompt;
  std::vector<int32_t> greedy_tokens;  // the reference's greedy continuation of the prompt
  std::vector<float> greedy_margins;   // logit of each of those minus the next best one
  std::vector<float> logits;           // [prompt, vocab]
  std::vector<float> tail_logits;      // [last few of AllTokens, vocab]
  double largest_logit = 0;            // of `logits` and `tail_logits`, absolute
  double bfloat16_error = 0;           // the reference's own
  double bfloat16_agreement = 0;       // the reference's own, share of greedy_tokens

  std::vector<int32_t> AllTokens() const;
};

std::string GoldenCasesDir();
std::vector<std::string> GoldenCaseNames();
Result<std::vector<float>> ReadFloats(const SafetensorsFile& file, const std::string& tensor);
Result<GoldenCase> ReadGoldenCase(const std::string& name);

// What the authors' code computes if attention logits are of few bits
// (tests/golden/make_logit_bits.py).
struct GoldenLogitBits {
  LogitQuant quant;
  std::vector<int32_t> tokens;
  std::vector<float> logits;  // [last few of `tokens`, vocab]
};

Result<std::vector<GoldenLogitBits>> ReadGoldenLogitBits(const std::string& name);

enum class GoldenSchedule {
  kOneChunk,
  kChunksOf7,
  kOneByOne,
  kAfterPreemption,  // 100 tokens are computed, their pages dropped; they are computed again in one
                     // chunk, the rest one by one
  kAfterPrefixHit,   // the first two pages are those of another sequence that began alike; the rest
                     // one by one
};
constexpr GoldenSchedule kGoldenSchedules[] = {
    GoldenSchedule::kOneChunk, GoldenSchedule::kChunksOf7, GoldenSchedule::kOneByOne,
    GoldenSchedule::kAfterPreemption, GoldenSchedule::kAfterPrefixHit};

constexpr const char* NameOf(GoldenSchedule schedule) {
  switch (schedule) {
    case GoldenSchedule::kOneChunk:
      return "one chunk";
    case GoldenSchedule::kChunksOf7:
      return "chunks of 7";
    case GoldenSchedule::kOneByOne:
      return "one by one";
    case GoldenSchedule::kAfterPreemption:
      return "after a preemption";
    case GoldenSchedule::kAfterPrefixHit:
      return "after a prefix hit";
  }
  return "?";
}

// Logits of the rows [first_row, first_row + logits.size() / vocab) of a sequence.
struct GoldenRun {
  size_t first_row = 0;
  std::vector<float> logits;
};

// Runs sequences of one model on a cache of its own, whose pages are neither adjacent nor ascending
// and hold NaNs until a token is written to them.
class GoldenRunner {
 public:
  // Pages of `kv_dtype`, but of the layers in `skipped` of the model's dtype.
  GoldenRunner(Model& model, size_t max_tokens, int page_size = kGoldenPageSize,
               std::optional<DType> kv_dtype = std::nullopt,
               const std::vector<size_t>& skipped = {});

  // Tokens from `position` on count as generated, not as the prompt's.
  void GenerateFrom(size_t position) { generated_from_ = position; }

  GoldenRun Run(GoldenSchedule schedule, const std::vector<int32_t>& tokens);
  GoldenRun Chunks(const std::vector<int32_t>& tokens, size_t chunk);

 private:
  // The page tables of a sequence.
  struct Pages {
    std::vector<int32_t> all, windows;
  };
  static std::vector<KvFormat> LayersOf(const Model& model, int page_size, DType dtype,
                                        const std::vector<size_t>& skipped);
  // A device's pages hold what they hold.
  void Poison();

  // Computes tokens[begin, end) in steps of `chunk` and appends their logits. The snapshots of
  // `state` are at positions of the sequence.
  void Append(const Pages& pages, const std::vector<int32_t>& tokens, size_t begin, size_t end,
              size_t chunk, std::vector<float>& logits, StateSlotUse state = {});

  Model& model_;
  size_t page_size_;
  size_t generated_from_ = SIZE_MAX;
  size_t pages_per_sequence_;
  KvCache kv_;
  size_t window_ = 0;  // the widest
  Pages odd_pages_, even_pages_;
};

// max|a - b| / max|b| over the rows of `run` whose logits the case holds; rows of AllTokens, of
// which the run may have the first.
double GoldenError(const GoldenCase& golden, const GoldenRun& run);

// The same of a run over all tokens of the reference, whose last rows are there.
double GoldenError(const GoldenLogitBits& golden, const GoldenRun& run);

// The choices of a run, token after token, given the reference's tokens before.
struct GoldenChoices {
  int equal = 0;      // to the reference's
  int ties = 0;       // unequal, at a margin that the float32 tolerance allows to turn round
  int different = 0;  // unequal otherwise
  int steps() const { return equal + ties + different; }
};

GoldenChoices CompareChoices(const GoldenCase& golden, const GoldenRun& run);

}  // namespace diffserve
