// SPDX-License-Identifier: Apache-2.0
// A real model with a draft model: the output must keep the same bits.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/draft_runner.h"
#include "engine/engine.h"
#include "engine/model_executor.h"
#include "tests/testing/engine/speculation_steps.h"
#include "tests/testing/models/checkpoint_writer.h"
#include "tests/testing/models/golden_case.h"

namespace diffserve {
namespace {

using testing::SpeculationAnswer;
using testing::SpeculationSteps;

struct DraftedModel {
  const char* golden_case = nullptr;  // nullptr: the tiny one
  int window = 0;                     // of a model with states
  int draft_layers = 2;               // as many as the tiny one has: the draft is the same model
  DType draft_pages = DType::kFloat32;
};

class DraftModelTest : public ::testing::TestWithParam<DraftedModel> {
 protected:
  static EngineOptions Alone() {
    return {.page_size = 16, .num_pages = 100, .max_model_len = 160, .max_num_seqs = 1};
  }
  static EngineOptions Drafting(EngineOptions options) {
    options.speculative_tokens = 7;
    options.draft_cost = 0.01;
    options.draft_len_max = 256;
    return options;
  }

  std::unique_ptr<Model> Load(const std::string& dir) {
    ModelOptions options;
    options.model_dir = dir;
    options.weight_format = WeightFormat::kFloat32;
    return std::move(Model::Load(options, pool_)).value();
  }
  static KvCache Pages(const Model& model, const EngineOptions& options, DType dtype) {
    return model
        .MakeUniformKvCache(KvFormat::Of(model.config().attention, options.page_size, dtype),
                            {.num_pages = options.num_pages,
                             .num_window_pages = options.num_window_pages,
                             .num_states = std::max(1, options.num_state_slots)})
        .value();
  }

  // With a draft model if the options have one.
  SpeculationSteps Run(EngineOptions options, const std::vector<Request>& requests) {
    std::string dir = checkpoint_.dir();
    if (GetParam().golden_case != nullptr) {
      dir = GoldenCasesDir() + "/" + GetParam().golden_case;
      options.window = GetParam().window;
      options.state_snapshot_interval = 2 * options.page_size;
      options.num_state_slots = options.MaxRunning() + 12;
      options.num_window_pages = static_cast<int>(options.WindowPagesMin(options.MaxRunning()) +
                                                  8 * options.WindowPagesPerSequence());
    }
    std::unique_ptr<Model> model = Load(dir);
    KvCache kv = Pages(*model, options, DType::kFloat32);
    std::unique_ptr<DraftRunner> draft;
    if (options.draft_cost > 0) {
      TinyCheckpointOptions of_draft;
      of_draft.num_layers = GetParam().draft_layers;
      of_draft.vocab_size = model->config().vocab_size;
      const TinyCheckpoint draft_checkpoint(of_draft);
      std::unique_ptr<Model> draft_model = Load(draft_checkpoint.dir());
      KvCache draft_kv = Pages(*draft_model, {.page_size = 16, .num_pages = options.num_pages},
                               GetParam().draft_pages);
      draft = std::make_unique<DraftRunner>(std::move(draft_model), std::move(draft_kv));
    }
    SpeculationSteps steps(options, std::make_unique<ModelExecutor>(std::move(model), std::move(kv),
                                                                    &pool_, std::move(draft)));
    for (Request request : requests) {
      if (request.constraint != nullptr) request.constraint = request.constraint->Clone();
      steps.scheduler.Add(std::move(request));
    }
    steps.RunToEnd();
    const SchedulerCounters& counters = steps.scheduler.counters();
    hits_ += counters.prefix_hits;
    preemptions_ += counters.preemptions;
    GuessCounts proposed = steps.scheduler.proposals().counters().proposed_tokens;
    GuessCounts accepted = steps.scheduler.proposals().counters().accepted_tokens;
    proposed_ += proposed.of(GuessSource::kDraft);
    accepted_ += accepted.of(GuessSource::kDraft);
    return steps;
  }

  void ExpectSameAnswers(const std::vector<Request>& requests) {
    const std::map<RequestId, SpeculationAnswer> expected = Run(Alone(), requests).answers;
    ASSERT_EQ(expected.size(), requests.size());
    EngineOptions together = Alone(), small_steps = Alone(), few_pages = Alone();
    together.max_num_seqs = 8;
    small_steps.max_num_seqs = 8;
    small_steps.max_num_batched_tokens = 16;
    few_pages.max_num_seqs = 8;
    few_pages.num_pages = 15;
    for (const EngineOptions& options : {Alone(), together, small_steps, few_pages}) {
      const SpeculationSteps steps = Run(Drafting(options), requests);
      for (const auto& [id, answer] : expected)
        ASSERT_EQ(steps.answers.at(id), answer) << "request=" << id;
    }
    EXPECT_GT(hits_, 0u);
    EXPECT_GT(preemptions_, 0u);
    EXPECT_GT(proposed_, 50u);
    EXPECT_LT(accepted_, proposed_);
  }

  uint64_t hits_ = 0, preemptions_ = 0, proposed_ = 0, accepted_ = 0;
  TinyCheckpoint checkpoint_;
  ThreadPool pool_{{.num_threads = 2, .pin = false, .spin_us = 0}};
};

TEST_P(DraftModelTest, OutputIsBitwiseIndependentOfTheDraftAndBatch) {
  ExpectSameAnswers(testing::AllKindsOfRequests());
}

TEST_P(DraftModelTest, ConstrainedOutputIsBitwiseIndependentOfTheDraft) {
  ExpectSameAnswers(testing::ConstrainedRequests());
}

INSTANTIATE_TEST_SUITE_P(
    Pairs, DraftModelTest,
    ::testing::Values(DraftedModel{.draft_pages = DType::kInt8},  // nearly always right
                      DraftedModel{.draft_layers = 1},
                      DraftedModel{.golden_case = "phi4flash_stored_lm_head_shards", .window = 7}));

using OwnDraftTest = DraftModelTest;

TEST_P(OwnDraftTest, EveryGuessIsRight) {
  std::vector<Request> requests = testing::AllKindsOfRequests();
  for (Request& request : requests) request.eos_token_ids.clear();  // guesses after an end are lost
  for (const bool together : {false, true}) {
    EngineOptions options = Drafting(Alone());
    if (together) options.max_num_seqs = 3;
    const std::map<RequestId, SpeculationAnswer> expected = Run(Alone(), requests).answers;
    EXPECT_EQ(Run(options, requests).answers, expected);
  }
  EXPECT_GT(proposed_, 500u);
  EXPECT_EQ(accepted_, proposed_) << "greedy, sampled and with penalties";
}

INSTANTIATE_TEST_SUITE_P(Pair, OwnDraftTest, ::testing::Values(DraftedModel{}));

}  // namespace
}  // namespace diffserve
