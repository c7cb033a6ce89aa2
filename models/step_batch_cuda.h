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
#include <span>
#include <vector>

#include "kernels/attention/attention_plan_cuda.h"
#include "kernels/attention/paged_batch.h"
#include "models/model.h"
#include "models/state_waves.h"

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

// Sizes that determine the offsets of a packed step's arrays.
struct StepShape {
  int num_tokens = 0;
  int num_generated_tokens = 0;     // the first ones
  int num_wanted_tokens = 0;        // the first ones: those that all layers compute
  int num_sequences = 0;            // entries
  int num_generated_sequences = 0;  // the first ones
  int num_wanted_sequences = 0;     // the first ones
  int num_logit_rows = 0;
  int num_sample_rows = 0;
  int num_plans = 0;  // for attention: StepPacking::tilings
  bool has_windows = false;
  struct Wave {
    int num_sequences = 0;
    int num_tokens = 0;
    int num_tokens_max = 0;  // per sequence
  };
  std::vector<Wave> waves;
};

// Byte offsets; each is a multiple of 16.
struct StepOffsets {
  explicit StepOffsets(const StepShape& shape);
  size_t sequences;        // DeviceSequence [num_sequences]
  size_t in_windows;       // likewise, if has_windows, with the pages of layers with a window
  size_t plans;            // StepPlanHeads [num_plans]
  size_t states;           // StateSequence of each wave, one wave after the other
  size_t token_sequences;  // int32 [num_tokens]
  size_t tokens;           // int32 [num_tokens]
  size_t logit_rows;       // int32 [num_logit_rows], indices in the packed order
  size_t sample_rows;      // SampleTask [num_sample_rows]
  // Masks of sample rows, which a SampleTask counts from here. Then int32 page ids of all entries,
  // counted in words from here by DeviceSequence::first_page. Then LogitAdjustments, counted
  // likewise by first_adjustment. Then the AttentionItems of the plans, likewise by first_item.
  size_t tail;
};

// How attention cuts a step in the layers with this window and with pages of this type.
struct StepTilings {
  int window = 0;  // LayerConfig::window
  DType pages = DType::kBFloat16;
  AttentionTiling generated;
  AttentionTiling prompts;
};
// One for each kind of attention layer, for steps in which no sequence has more than this number of
// generated tokens.
std::vector<StepTilings> TilingsOf(const ModelConfig& config, const KvCache::Layout& kv,
                                   int generated_tokens_max);

struct StepPlanHeads {
  AttentionPlanHead generated;
  AttentionPlanHead prompts;
  AttentionPlanHead wanted_prompts;  // those that all layers compute
};

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

  std::vector<StepPiece> pieces_;           // an entry each
  std::vector<DeviceSequence> sequences_;   // [pieces], then padding
  std::vector<DeviceSequence> in_windows_;  // likewise, if layers have windows
  std::vector<StateSequence> states_;       // of all waves
  std::vector<StepPlanHeads> plans_;
  std::vector<AttentionItem> items_;  // of all plans
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
  bool draws = false;  // with the batch's sample rows (those of all passes)
  // Above 0: a decode padded to that many tokens and sequences; those beyond the pass's own are
  // empty. REQUIRES then: IsDecode.
  int num_padded = 0;
};
// Packs one pass. `step` views the batch until it is written.
void PackStep(const Batch& batch, const StepPass& pass, const StepPacking& packing,
              PackedStep* step);

// Tokens as kernels take them.
struct StepRows {
  PagedBatch all, generated, prompts;
};

// A packed step that has been copied to `base`, and the tilings that it was packed with.
struct DeviceStep {
  DeviceStep(const StepShape& shape, std::byte* base, std::span<const StepTilings> tilings);

  struct Plans {
    StepTilings tilings;
    AttentionPlan generated, prompts, wanted_prompts;
  };
  // For the layers with this window and with pages of this type.
  const Plans& PlansOf(int window, DType pages) const;

  // The part of these rows that all layers compute.
  StepRows Wanted(const StepRows& rows) const;

  StepRows rows;
  StepRows in_windows;  // the same, with the pages of layers with a window
  std::vector<StateBatch> waves;
  std::vector<Plans> plans;
  int num_wanted_tokens;
  int num_wanted_sequences;
  int num_logit_rows;
  int num_sample_rows;
  const int32_t* tokens;
  const int32_t* logit_rows;
  const SampleTask* sample_rows;
  LogitAdjustment* adjustments;
  const uint32_t* masks;
};

}  // namespace diffserve::cuda
