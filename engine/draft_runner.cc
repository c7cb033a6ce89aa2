// SPDX-License-Identifier: Apache-2.0
#include "engine/draft_runner.h"

#include <chrono>
#include <utility>

#include "engine/device_error.h"
#include "engine/planned_draw.h"
#include "kernels/process/check.h"

namespace diffserve {

DraftRunner::DraftRunner(std::unique_ptr<Model> model, KvCache kv)
    : kv_(std::move(kv)), model_(std::move(model)) {
  DS_CHECK(model_->config().num_state_layers() == 0, "the draft model keeps no states");
}

std::vector<std::vector<int32_t>> DraftRunner::Run(const StepPlan& plan) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::vector<int32_t>> guesses(plan.sequences.size());
  const int passes = plan.draft_load().passes;
  for (int pass = 0; pass < passes; ++pass) RunPass(plan, pass, guesses);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  seconds_ = passes == 0 ? 0 : elapsed.count();
  return guesses;
}

// Pass 0 computes the known tokens and makes the first guesses; each later one computes the last
// guess of each sequence and makes the next.
void DraftRunner::RunPass(const StepPlan& plan, int pass,
                          std::vector<std::vector<int32_t>>& guesses) {
  Batch batch;
  std::vector<size_t> guessing;  // [logit_rows] index into the plan
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const PlannedSequence& planned = plan.sequences[i];
    const DraftWork& work = planned.draft;
    const bool takes_part = pass == 0 ? !work.empty() : pass < work.guesses;
    if (!takes_part) continue;
    const int position = pass == 0 ? work.first : work.end + pass - 1;
    const int end = pass == 0 ? work.end : position + 1;
    batch.sequences.push_back(
        {static_cast<int>(batch.tokens.size()), end - position, position, planned.pages.data()});
    for (int at = position; at < end; ++at)
      batch.tokens.push_back(at < work.end ? planned.TokenAt(at) : guesses[i].back());
    if (work.guesses == 0) continue;
    batch.logit_rows.push_back(static_cast<int32_t>(batch.tokens.size()) - 1);
    SampleTask task = PackPlannedDraw(planned, guesses[i], model_->config().vocab_size,
                                      &batch.adjustments);
    task.num_top = -1;
    batch.sample_rows.push_back(task);
    guessing.push_back(i);
  }
  if (const Status status = model_->Forward(batch, kv_); !status.ok()) throw DeviceError(status);
  if (guessing.empty()) return;
  const Result<std::vector<SampledToken>> sampled = model_->Collect();
  if (!sampled.ok()) throw DeviceError(sampled.status());
  // A draw that is not finite is a guess like any other: the model's draws decide.
  for (size_t row = 0; row < guessing.size(); ++row) {
    const SampledToken& token = (*sampled)[row];
    guesses[guessing[row]].push_back(token.finite != 0 ? token.token : 0);
  }
}

}  // namespace diffserve
