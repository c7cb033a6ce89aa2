#include "engine/model_executor.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "kernels/base/check.h"

namespace diffserve {

ModelExecutor::ModelExecutor(std::unique_ptr<Model> model, KvCache kv, ThreadPool& pool)
    : model_(std::move(model)), kv_(std::move(kv)), pool_(pool) {}

void ModelExecutor::Begin(const Request& request) { requests_.emplace(request.id, request); }

void ModelExecutor::End(RequestId request) { requests_.erase(request); }

void ModelExecutor::Launch(const StepPlan& plan) {
  Batch batch;
  std::vector<LogitUse> uses;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const PlannedSequence& planned = plan.sequences[i];
    const Request& request = requests_.at(planned.request);
    const int first_row = static_cast<int>(batch.tokens.size());
    batch.sequences.push_back({first_row, planned.num_planned, planned.num_computed, planned.pages.data()});
    batch.tokens.insert(batch.tokens.end(), planned.tokens.begin(), planned.tokens.end());
    for (int t = 0; t < planned.num_planned; ++t) {
      const size_t next = static_cast<size_t>(planned.num_computed + t) + 1;  // position that this row predicts
      const bool scores = planned.scores_prompt && next < request.prompt.size();
      const bool samples = planned.samples && t + 1 == planned.num_planned;
      if (!scores && !samples) continue;
      batch.logit_rows.push_back(first_row + t);
      uses.push_back({i, scores ? request.prompt[next] : -1, next});
    }
  }
  model_->Forward(batch, kv_);

  std::vector<SampleResult> answers(uses.size());
  const int64_t vocab = model_->config().vocab_size;
  const size_t slice = static_cast<size_t>(std::max<int64_t>(1, kMaxLogitElements / vocab));
  for (size_t first = 0; first < uses.size(); first += slice) {
    const size_t count = std::min(slice, uses.size() - first);
    const std::span<const float> logits = model_->Logits(static_cast<int>(first), static_cast<int>(count));
    std::atomic<size_t> next_row{0};
    pool_.Run([&](int) {
      for (size_t row = next_row.fetch_add(1); row < count; row = next_row.fetch_add(1)) {
        Use(uses[first + row], logits.subspan(row * static_cast<size_t>(vocab), static_cast<size_t>(vocab)), plan,
            answers[first + row]);
      }
    });
  }

  result_.sequences.assign(plan.sequences.size(), {});
  for (size_t i = 0; i < plan.sequences.size(); ++i) result_.sequences[i].request = plan.sequences[i].request;
  for (size_t i = 0; i < uses.size(); ++i) {
    SequenceResult& result = result_.sequences[uses[i].sequence];
    if (uses[i].prompt_token >= 0) {
      result.prompt_scores.push_back(std::move(answers[i]));
    } else {
      DS_CHECK(!answers[i].finite || (answers[i].token >= 0 && answers[i].token < vocab), "a drawn token is in the vocabulary");
      result.sampled = true;
      result.sample = std::move(answers[i]);
    }
  }
}

void ModelExecutor::Use(const LogitUse& use, std::span<const float> logits, const StepPlan& plan, SampleResult& out) const {
  const PlannedSequence& planned = plan.sequences[use.sequence];
  const Request& request = requests_.at(planned.request);
  if (use.prompt_token >= 0) {
    out = ScoreToken(logits, use.prompt_token, request.prompt_logprobs);
    return;
  }
  SampleArgs args;
  args.logits = logits;
  args.params = &request.sampling;
  args.sequence = request.sequence;
  args.position = use.position;
  args.prompt_tokens = request.prompt;
  args.output_tokens = planned.output_tokens;
  args.banned_tokens = planned.banned_tokens;
  out = Sample(args);
}

StepResult ModelExecutor::Collect() { return std::exchange(result_, {}); }

}  // namespace diffserve
