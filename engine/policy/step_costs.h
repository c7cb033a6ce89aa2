// SPDX-License-Identifier: Apache-2.0
// StepCosts: what a plan may know about time. Measured by the engine loop; the Scheduler has no
// clock.
#pragma once

#include <optional>

#include "engine/policy/draft_record.h"
#include "engine/policy/row_cost.h"

namespace diffserve {

struct StepCosts {
  // How many tokens take as long as a step's overhead. Until it is known, steps are not divided
  // between clients, and proposals suppose a small one.
  std::optional<int> overhead_tokens = {};
  // The most tokens of a step in which sequences decode beside prompts; nullopt: as many as of any
  // step. Prompts get at least a page.
  std::optional<int> mixed_tokens_max = {};
  // What steps of few rows cost, in tokens of a step; nullopt: their overhead and one token per
  // row.
  std::optional<RowCosts> rows = {};
  std::optional<DraftCost> draft = {};  // nullopt: as much as the draft model's size says
  double now = 0;                       // seconds
  double token_seconds = 0;             // of a token of a step; 0: not known yet
};

}  // namespace diffserve
