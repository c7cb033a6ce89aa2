// SPDX-License-Identifier: Apache-2.0
#include "engine/model_executor.h"

#include <algorithm>
#include <utility>

#include "engine/planned_draw.h"
#include "kernels/process/check.h"
#include "models/diagnostics/batch_observer.h"

namespace diffserve {
namespace {

std::string OverflowHint(const KvCache& kv) {
  for (const KvFormat& format : kv.layers()) {
    if (format.codec.largest == 0) continue;
    return ", as a K or V beyond " + std::to_string(static_cast<int>(format.codec.largest)) +
           " makes in " + std::string(NameOf(format.codec.dtype)) + " KV pages";
  }
  return {};
}

// Most steps have a token and a draw for each sequence.
void Reserve(const StepPlan& plan, Batch& batch) {
  const size_t num_sequences = plan.sequences.size();
  const auto num_tokens = static_cast<size_t>(plan.num_tokens());
  batch.tokens.reserve(num_tokens);
  batch.sequences.reserve(num_sequences);
  batch.states.reserve(num_sequences);
  batch.num_prompt_tokens.reserve(num_sequences);
  batch.logit_rows.reserve(num_sequences);
  batch.sample_rows.reserve(num_sequences);
}

}  // namespace

ModelExecutor::ModelExecutor(std::unique_ptr<Model> model, KvCache kv, ThreadPool* pool,
                             std::unique_ptr<DraftRunner> draft)
    : kv_(std::move(kv)),
      model_(std::move(model)),
      draft_(std::move(draft)),
      masks_(model_->config().vocab_size, pool) {}

// The draft model's guesses take their places in the plan first.
void ModelExecutor::Launch(const StepPlan& plan) {
  if (draft_ == nullptr) return LaunchModel(plan);
  std::vector<std::vector<int32_t>> guesses = draft_->Run(plan);
  StepPlan guessed = plan;
  for (size_t i = 0; i < guesses.size(); ++i) {
    if (!guesses[i].empty()) guessed.sequences[i].proposed = guesses[i];
  }
  LaunchModel(guessed);
  launched_.back().guesses = std::move(guesses);
}

void ModelExecutor::LaunchModel(const StepPlan& plan) {
  Batch batch;
  batch.is_collected = true;
  LaunchedStep step;
  step.num_sequences = plan.sequences.size();
  Reserve(plan, batch);
  step.owners.reserve(step.num_sequences);
  std::vector<DrawnRow> drawn;
  drawn.reserve(step.num_sequences);
  BatchObserver observer;
  masks_.Fill(plan);
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const PlannedSequence& planned = plan.sequences[i];
    const Request& request = *planned.request;
    const int num_prompt_tokens = static_cast<int>(request.prompt.size());
    const int first_token = static_cast<int>(batch.tokens.size());
    batch.sequences.push_back(
        {first_token, planned.num_planned, planned.num_computed, planned.pages.data(),
         planned.window_pages.empty() ? nullptr : planned.window_pages.data()});
    batch.states.push_back(planned.states);
    for (const std::shared_ptr<SequenceObserver>& sequence : request.observers) {
      observer.Add(*sequence, i, batch.sequences.back(), num_prompt_tokens);
      step.observers.emplace_back(i, sequence);
    }
    const DrawMasks::Entry& masks = masks_.entries()[i];
    if (!masks.error.ok()) step.errors.emplace_back(i, masks.error);
    batch.num_prompt_tokens.push_back(
        std::clamp(num_prompt_tokens - planned.num_computed, 0, planned.num_planned));
    for (int position = planned.num_computed; position < planned.end(); ++position) {
      const int32_t token = planned.TokenAt(position);
      batch.tokens.push_back(token == kDrawnByStepBefore ? -1 - RowDrawnFor(request.id) : token);
      const int next = position + 1;
      const bool scores = planned.scores_prompt && next < num_prompt_tokens;
      if (!scores && next <= planned.end() - planned.samples) continue;
      if (!scores) drawn.push_back({request.id, static_cast<int32_t>(batch.sample_rows.size())});
      batch.logit_rows.push_back(first_token + position - planned.num_computed);
      batch.sample_rows.push_back(scores ? PackScore(request.prompt[static_cast<size_t>(next)],
                                                     request.sampling.prompt_logprobs)
                                         : PackDraw(planned, masks, next, batch));
      step.owners.push_back(i);
    }
  }
  if (!observer.empty()) batch.observer = &observer;
  batch.masks = std::move(masks_.words());
  if (const Status status = model_->Forward(batch, kv_); !status.ok()) throw DeviceError(status);
  masks_.words() = std::move(batch.masks);
  step.rows = std::move(batch.sample_rows);
  std::ranges::sort(drawn, {}, &DrawnRow::request);
  drawn_ = std::move(drawn);
  launched_.push_back(std::move(step));
}

// REQUIRES: the step before drew a token for the request, and only one.
int32_t ModelExecutor::RowDrawnFor(RequestId request) const {
  const auto found = std::ranges::lower_bound(drawn_, request, {}, &DrawnRow::request);
  DS_CHECK(found != drawn_.end() && found->request == request, "the step before drew the token");
  return found->row;
}

// A draw that may not be made gets kNothing.
SampleTask ModelExecutor::PackDraw(const PlannedSequence& planned, const DrawMasks::Entry& masks,
                                   int position, Batch& batch) const {
  const int draw = position - (planned.end() - planned.samples) - 1;
  if (draw >= masks.num_draws) return {.kind = SampleKind::kNothing};
  SampleTask task = PackPlannedDraw(planned, planned.proposed.first(static_cast<size_t>(draw)),
                                    model_->config().vocab_size, &batch.adjustments);
  if (masks.first >= 0) task.mask = masks.first + draw;
  return task;
}

StepResult ModelExecutor::Collect() {
  DS_CHECK(!launched_.empty(), "a step is launched before it is collected");
  const LaunchedStep step = std::move(launched_.front());
  launched_.pop_front();
  const Result<std::vector<SampledToken>> sampled = model_->Collect();
  if (!sampled.ok()) throw DeviceError(sampled.status());
  const int vocab = model_->config().vocab_size;
  StepResult result(step.num_sequences);
  for (size_t i = 0; i < step.rows.size(); ++i) {
    SampleResult answer;
    answer.finite = false;
    if (step.rows[i].kind != SampleKind::kNothing)
      answer = ToSampleResult(step.rows[i], (*sampled)[i]);
    DS_CHECK(!answer.finite || (answer.token >= 0 && answer.token < vocab),
             "a drawn token is in the vocabulary");
    SequenceResult& owner = result[step.owners[i]];
    if (!answer.finite) owner.non_finite_hint = OverflowHint(kv_);
    if (step.rows[i].kind == SampleKind::kScore) {
      owner.prompt_scores.push_back(std::move(answer));
    } else {
      owner.samples.push_back(std::move(answer));
    }
  }
  for (size_t i = 0; i < step.guesses.size(); ++i) result[i].guesses = step.guesses[i];
  for (const auto& [index, error] : step.errors) result[index].error = error;
  for (const auto& [sequence, observer] : step.observers) {
    if (Status status = observer->status(); !status.ok())
      result[sequence].observed = std::move(status);
  }
  return result;
}

}  // namespace diffserve
