#include "engine/model_executor.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"

namespace diffserve {
namespace {

std::string OverflowHint(const KvCodec& codec) {
  if (codec.largest == 0) return {};
  return ", as a K or V beyond " + std::to_string(static_cast<int>(codec.largest)) + " makes in " +
         std::string(NameOf(codec.dtype)) + " KV pages";
}

}  // namespace

ModelExecutor::ModelExecutor(std::unique_ptr<Model> model, KvCache kv)
    : kv_(std::move(kv)), model_(std::move(model)) {}

void ModelExecutor::Begin(const Request& request) { requests_.emplace(request.id, request); }

void ModelExecutor::End(RequestId request) { requests_.erase(request); }

void ModelExecutor::Launch(const StepPlan& plan) {
  Batch batch;
  batch.is_collected = true;
  LaunchedStep step;
  std::unordered_map<RequestId, int32_t> drawn;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const PlannedSequence& planned = plan.sequences[i];
    const Request& request = requests_.at(planned.request);
    step.requests.push_back(planned.request);
    const int first_row = static_cast<int>(batch.tokens.size());
    batch.sequences.push_back(
        {first_row, planned.num_planned, planned.num_computed, planned.pages.data()});
    batch.tokens.insert(batch.tokens.end(), planned.tokens.begin(), planned.tokens.end());
    if (batch.tokens.back() < 0) batch.tokens.back() = -1 - drawn_.at(planned.request);
    const int prompt_rows = static_cast<int>(request.prompt.size()) - planned.num_computed;
    batch.num_prompt_tokens.push_back(std::clamp(prompt_rows, 0, planned.num_planned));
    for (int t = 0; t < planned.num_planned; ++t) {
      const size_t next = static_cast<size_t>(planned.num_computed + t) + 1;  // position that this
                                                                              // row predicts
      const bool scores = planned.scores_prompt && next < request.prompt.size();
      const bool samples = planned.samples && t + 1 == planned.num_planned;
      if (!scores && !samples) continue;
      if (!scores) drawn[planned.request] = static_cast<int32_t>(batch.sample_rows.size());
      batch.logit_rows.push_back(first_row + t);
      batch.sample_rows.push_back(scores ? PackScore(request.prompt[next], request.prompt_logprobs)
                                         : Pack(planned, request, next, batch));
      step.uses.push_back({i, scores, batch.sample_rows.back()});
    }
  }
  if (const Status status = model_->Forward(batch, kv_); !status.ok()) throw DeviceError(status);
  drawn_ = std::move(drawn);
  launched_.push_back(std::move(step));
}

SampleTask ModelExecutor::Pack(const PlannedSequence& planned, const Request& request,
                               size_t position, Batch& batch) const {
  return PackDraw({.params = &request.sampling,
                   .vocab_size = model_->config().vocab_size,
                   .sequence = request.sequence,
                   .position = position,
                   .prompt_tokens = request.prompt,
                   .output_tokens = planned.output_tokens,
                   .banned_tokens = planned.banned_tokens},
                  &batch.adjustments);
}

StepResult ModelExecutor::Collect() {
  DS_CHECK(!launched_.empty(), "a step is launched before it is collected");
  const LaunchedStep step = std::move(launched_.front());
  launched_.pop_front();
  const Result<std::vector<SampledToken>> sampled = model_->Collect();
  if (!sampled.ok()) throw DeviceError(sampled.status());
  StepResult result;
  result.sequences.resize(step.requests.size());
  for (size_t i = 0; i < step.requests.size(); ++i) result.sequences[i].request = step.requests[i];
  for (size_t i = 0; i < step.uses.size(); ++i) {
    const LogitUse& use = step.uses[i];
    SequenceResult& of_sequence = result.sequences[use.sequence];
    SampleResult answer = ToSampleResult(use.row, (*sampled)[i]);
    const int vocab = model_->config().vocab_size;
    if (!answer.finite) of_sequence.non_finite_hint = OverflowHint(kv_.format().codec);
    DS_CHECK(!answer.finite || (answer.token >= 0 && answer.token < vocab),
             "a drawn token is in the vocabulary");
    if (use.scores) {
      of_sequence.prompt_scores.push_back(std::move(answer));
    } else {
      of_sequence.sampled = true;
      of_sequence.sample = std::move(answer);
    }
  }
  return result;
}

}  // namespace diffserve
