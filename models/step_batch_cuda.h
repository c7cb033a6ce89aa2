// SPDX-License-Identifier: Apache-2.0
// A step's Batch as the device gets it: one run of bytes, copied at once. Plain host code.
//
// Tokens are reordered. Generated ones come first, since one kernel serves them and another serves
// prompt tokens (model.h says why), and each needs its tokens to be contiguous. A sequence with
// both has two entries, and more where its generated tokens differ in the size of attention's
// splits. If the last layers keep nothing of a token, prompt tokens that only earlier
// layers compute come last, in entries of their own. So the last layers take only the first tokens.
//
// A step whose attention would need too much memory for partial results is cut into passes. Each is
// a forward pass of its own, in the order of positions.
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "models/device_step_cuda.h"

namespace diffserve::cuda {

// Tokens [first, first + num_tokens) of one sequence's tokens in the step, all from its prompt or
// all generated.
struct StepPiece {
  int sequence = 0;  // index into Batch::sequences
  int first = 0;
  int num_tokens = 0;
  bool is_prompt = false;
};
using StepPass = std::vector<StepPiece>;

// `tiling` is for the batch's generated tokens; `items_max` is the maximum number of their
// attention items per pass. A pass has at most one piece of each kind per sequence. REQUIRES: no
// single token needs more items; the batch's sequences are in row order.
std::vector<StepPass> CutIntoPasses(const Batch& batch, const AttentionTiling& tiling,
                                    int64_t items_max);

// Maximum number of generated tokens per sequence; 0 if there are none.
int GeneratedTokensMax(const Batch& batch);

// Decodes of several sizes share a graph. The number of tokens to which a decode of `num_tokens` is
// padded, at most `tokens_max`; 0 if it is too large for a graph.
int GraphTokens(size_t num_tokens, int tokens_max);

// What a model's layers need of a step besides its tokens.
struct StepNeeds {
  bool has_windows = false;  // page tables of the layers with a window
  bool has_states = false;   // waves
  bool may_skip = false;     // the tokens that all layers must compute come first
  static StepNeeds Of(const ModelConfig& config);
};

// Whether all tokens are generated or proposed ones, each with a draw, and their number decides
// which kernels the step queues. With states, sequences must have one token each: how states are
// kept between proposed tokens changes the kernels.
bool IsDecode(const Batch& batch, const StepNeeds& needs);

// A pass in the device's order: arrays, and views of the batch's largest parts, which Write copies
// straight to where the transfer reads them. Used again, it keeps its memory.
class PackedStep {
 public:
  StepShape shape;
  size_t size_bytes() const { return size_bytes_; }
  // REQUIRES: `to` has size_bytes() bytes; the batch is as it was in PackStep.
  void Write(std::byte* to) const;
  // The packed row of each token of the batch; -1: not in this pass.
  std::span<const int32_t> packed_of_token() const { return packed_of_token_; }

 private:
  friend class StepPacker;

  std::vector<StepPiece> pieces_;              // an entry each
  std::vector<DeviceSequence> sequences_;      // [pieces], then padding
  std::vector<DeviceSequence> in_windows_;     // likewise, if layers have windows
  std::vector<StateSequence> states_;          // of all waves
  std::vector<AttentionPlanHead> plan_heads_;  // of all plans
  std::vector<AttentionItem> items_;           // likewise
  std::vector<int32_t> token_sequences_, tokens_, logit_rows_, packed_of_token_;
  std::vector<SampleTask> sample_rows_;
  std::vector<std::span<const int32_t>> tables_;  // of page ids, one after the other in the tail
  std::span<const uint32_t> masks_;
  std::span<const LogitAdjustment> adjustments_;
  size_t pages_begin_ = 0, adjustments_begin_ = 0, items_begin_ = 0;  // in the tail, bytes
  size_t size_bytes_ = 0;
};

struct StepPacking {
  StepNeeds needs = {};
  std::span<const StepTilings> tilings = {};
  int page_size = 0;
  int prompt_pages_max = std::numeric_limits<int>::max();  // in a run of several entries
  bool draws = false;  // with the batch's sample rows (those of all passes)
  // Above 0: a decode padded to that many tokens and sequences; those beyond the pass's own are
  // empty. REQUIRES then: IsDecode.
  int num_padded = 0;
};
// Packs one pass. `step` views the batch until it is written.
void PackStep(const Batch& batch, const StepPass& pass, const StepPacking& packing,
              PackedStep* step);

}  // namespace diffserve::cuda
