// SPDX-License-Identifier: Apache-2.0
// DraftPlan: the draft model of --speculative-model, checked against the model whose tokens it
// guesses. PlanDraft reads no weights.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/draft_runner.h"
#include "models/model.h"
#include "server/app/options.h"
#include "server/app/session/progress_line.h"

namespace diffserve {

struct DraftPlan {
  ModelOptions model;
  ModelSummary summary;
  std::vector<KvFormat> layouts;  // of each layer's KV pages
  size_t page_bytes = 0;          // of one page id, all layers and groups
  bool commits_pages = false;     // --kv-cache-commit
};

// `model`: the other model's options, `config` its config. Error: the draft model's tokens are not
// the model's, or it has layers that keep states, or no kernels for the page format.
Result<DraftPlan> PlanDraft(const SessionOptions& options, const ModelOptions& model,
                            const ModelConfig& config, int page_size);

Result<std::unique_ptr<DraftRunner>> LoadDraft(const DraftPlan& plan, int num_pages,
                                               ThreadPool& pool, ProgressLine::Form form);

}  // namespace diffserve
