// SPDX-License-Identifier: Apache-2.0
// A packed step on the device: where its arrays are in one run of bytes, and the views of them that
// the layers take. Plain host code.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/attention/attention_plan_cuda.h"
#include "kernels/attention/paged_batch.h"
#include "models/model.h"
#include "models/state_waves.h"

namespace diffserve::cuda {

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
  bool has_windows = false;
  // Prompt entries, one after the other, whose attention is computed at once, and the part of the
  // tail's page ids in which all of theirs are.
  struct PromptRun {
    int first_page = 0;
    int num_pages = 0;
  };
  struct Plan {
    std::vector<PromptRun> prompts;
    std::vector<PromptRun> wanted_prompts;  // those that all layers compute
  };
  std::vector<Plan> plans;  // for attention: StepPacking::tilings
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
  size_t sequences;   // DeviceSequence [num_sequences]
  size_t in_windows;  // likewise, if has_windows, with the pages of layers with a window
  // AttentionPlanHead of each plan, one plan after the other: of the generated entries, of the runs
  // of prompts, of those of wanted prompts.
  size_t plans;
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

// How attention cuts a step in the layers with this window.
struct StepTilings {
  int window = 0;  // LayerConfig::window
  AttentionTiling generated;
  AttentionTiling prompts;
};
// One for each kind of attention layer, for steps in which no sequence has more than this number of
// generated tokens.
std::vector<StepTilings> TilingsOf(const ModelConfig& config, int generated_tokens_max);

// Tokens as kernels take them.
struct StepRows {
  PagedBatch all, generated, prompts;
};

// A packed step that has been copied to `base`, and the tilings that it was packed with.
struct DeviceStep {
  DeviceStep(const StepShape& shape, std::byte* base, std::span<const StepTilings> tilings);

  struct PromptRun {
    AttentionPlan plan;
    StepShape::PromptRun pages;
  };
  struct Plans {
    StepTilings tilings;
    AttentionPlan generated;
    std::vector<PromptRun> prompts, wanted_prompts;
  };
  // For the layers with this window.
  const Plans& PlansOf(int window) const;

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
