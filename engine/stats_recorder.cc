// SPDX-License-Identifier: Apache-2.0
#include "engine/stats_recorder.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace diffserve {
namespace {

// The draft model's first passes also take memory and wake its threads.
constexpr int kDraftMeasuresMin = 4;
constexpr uint64_t kDraftMeasuredFor = 1024;  // steps

}  // namespace

void StatsRecorder::OnAdd(const Request& request) {
  Times& times = times_[request.id];
  times.arrival = request.arrival;
  times.prompt_tokens = static_cast<int>(request.prompt.size());
  times.max_tokens = request.max_tokens;
  constexpr double kKeep = 0.95;
  mean_max_tokens_ = times_.size() == 1
                         ? request.max_tokens
                         : kKeep * mean_max_tokens_ + (1 - kKeep) * request.max_tokens;
}

void StatsRecorder::OnPlan(const StepPlan& plan, TimePoint now) {
  for (const PlannedSequence& sequence : plan.sequences) {
    if (!sequence.first_step) continue;
    Times& times = times_.at(sequence.id());
    times.started = now;
    stats_.prompt_tokens += times.prompt_tokens;
    stats_.queue_seconds.Observe(SecondsBetween(times.arrival, now));
  }
}

void StatsRecorder::OnEvent(TokenEvent& event, TimePoint now) {
  const auto it = times_.find(event.request);
  if (it == times_.end()) return;
  Times& times = it->second;
  if (!event.tokens.empty()) {
    if (times.generated == 0) {
      times.first_token = now;
      stats_.time_to_first_token_seconds.Observe(SecondsBetween(times.arrival, now));
      stats_.prefill_seconds.Observe(SecondsBetween(times.started, now));
    } else {
      stats_.inter_token_seconds.Observe(SecondsBetween(times.last_token, now));
    }
    times.last_token = now;
    event.times = {.prompt_s = SecondsBetween(times.started, times.first_token),
                   .tokens_s = SecondsBetween(times.first_token, now)};
    times.generated += static_cast<int>(event.tokens.size());
    stats_.generation_tokens += event.tokens.size();
    recent_tokens_ += static_cast<double>(event.tokens.size());
  }
  if (event.finish == FinishReason::kNone) return;
  OnEnd(event, times, now);
  times_.erase(it);
}

void StatsRecorder::OnEnd(const TokenEvent& event, const Times& times, TimePoint now) {
  if (times.started != TimePoint()) {
    constexpr double kKeep = 0.998;
    recent_tokens_ *= kKeep;
    recent_stops_ = kKeep * recent_stops_ + (event.finish == FinishReason::kLength ? 0 : 1);
  }
  // A request that left the queue because it could not start in time is counted as refused.
  if (event.error.code() == StatusCode::kResourceExhausted) return;
  ++stats_.finished[static_cast<size_t>(event.finish)];
  if (event.finish == FinishReason::kError && event.error.code() == StatusCode::kInternal)
    ++stats_.corrupted_in_a_row;
  if (event.finish != FinishReason::kStop && event.finish != FinishReason::kLength) return;
  stats_.corrupted_in_a_row = 0;
  stats_.e2e_seconds.Observe(SecondsBetween(times.arrival, now));
  stats_.request_prompt_tokens.Observe(times.prompt_tokens);
  stats_.request_generation_tokens.Observe(times.generated);
  stats_.request_max_tokens.Observe(times.max_tokens);
  stats_.inference_seconds.Observe(SecondsBetween(times.started, now));
  if (times.generated == 0) return;
  const double decode_seconds = SecondsBetween(times.first_token, now);
  stats_.decode_seconds.Observe(decode_seconds);
  stats_.mean_token_seconds.Observe(decode_seconds / std::max(1, times.generated - 1));
}

void StatsRecorder::OnStep(const StepRecord& step) {
  stats_.steps = step.step;
  stats_.last_step_tokens = step.num_tokens;
  stats_.last_step_sequences = step.num_sequences;
  stats_.step_tokens.Observe(step.num_tokens);
  stats_.plan_seconds.Observe(SecondsBetween(step.begin, step.planned));
  const double execute_seconds = SecondsBetween(std::max(step.planned, last_executed_),
                                                step.executed);
  stats_.execute_seconds.Observe(execute_seconds);
  // What the engine does between two steps is part of their cost.
  const double seconds = SecondsBetween(last_executed_, step.executed) - step.draft_seconds;
  step_cost_.Take(step.num_tokens, seconds);
  if (step.num_tokens > 0) row_cost_.Take(step.num_tokens, seconds);
  if (step.draft.passes > 0 && step.draft_seconds > 0) {
    const auto passes = static_cast<double>(step.draft.passes);
    draft_cost_.Take(step.draft.tokens / passes, step.draft_seconds / passes);
    ++num_draft_measures_;
    last_draft_step_ = step.step;
  } else if (step.step - last_draft_step_ > kDraftMeasuredFor) {
    draft_cost_ = {};
    num_draft_measures_ = 0;
  }
  stats_.commit_seconds.Observe(SecondsBetween(step.executed, step.committed));
  last_executed_ = step.executed;
}

std::optional<RowCosts> StatsRecorder::row_costs() const {
  std::optional<RowCosts> costs = row_cost_.costs();
  if (!costs || !step_cost()) return std::nullopt;
  for (double& cost : *costs) cost /= step_cost()->token_seconds;
  return costs;
}

std::optional<DraftCost> StatsRecorder::draft_cost() const {
  if (num_draft_measures_ < kDraftMeasuresMin || !draft_cost_.cost() || !step_cost())
    return std::nullopt;
  const double token_seconds = step_cost()->token_seconds;
  return DraftCost{.pass = draft_cost_.cost()->overhead_seconds / token_seconds,
                   .token = draft_cost_.cost()->token_seconds / token_seconds};
}

QueueState StatsRecorder::QueueOf(const Scheduler& scheduler) const {
  QueueState queue;
  std::vector<int> tokens_left;
  tokens_left.reserve(scheduler.running().size());
  for (const auto& sequence : scheduler.running()) {
    tokens_left.push_back(sequence->request.max_tokens - sequence->num_outputs());
    queue.prompt_tokens_left += std::max(0, sequence->num_remaining() - 1);
  }
  queue.clients = scheduler.queue().Counts();
  queue.seats = SeatForecast(
      tokens_left, scheduler.free_seats(),
      {.max_tokens = mean_max_tokens_,
       .stop_chance = std::min(1.0, recent_stops_ / std::max(1.0, recent_tokens_))});
  queue.cost = step_cost_.cost();
  return queue;
}

void StatsRecorder::ReadGauges(const Scheduler& scheduler) {
  stats_.running = static_cast<int>(scheduler.running().size());
  stats_.pages_total = scheduler.pool().num_pages();
  stats_.pages_free = scheduler.pool().num_free();
  const int num_kept = scheduler.transfers().NumPagesOnlyKept();
  stats_.pages_cached = scheduler.pool().num_cached() + num_kept;
  stats_.pages_used = scheduler.pool().num_in_use() - num_kept;
  const SchedulerCounters& counters = scheduler.counters();
  const TierTransfers::Counters& transfers = scheduler.transfers().counters();
  const ProposalPlanner::Counters& proposals = scheduler.proposals().counters();
  stats_.prompt_tokens_cached = counters.prefix_hits;
  stats_.prefix_queries = counters.prefix_queries;
  stats_.prefix_hits = counters.prefix_hits;
  stats_.prefix_misses = counters.prefix_misses;
  stats_.prefix_deferrals = counters.deferrals;
  stats_.tier_loads = scheduler.transfers().num_loads();
  stats_.tier_hits = counters.tier_hits;
  if (step_cost_.cost()) {
    const uint64_t tokens = transfers.tokens_loaded -
                            std::exchange(priced_tokens_, transfers.tokens_loaded);
    stats_.tier_seconds_saved += static_cast<double>(tokens) * step_cost_.cost()->token_seconds;
  }
  stats_.tier_pages_lost = transfers.pages_lost;
  stats_.tier_slow_loads = transfers.slow_loads;
  stats_.preemptions = counters.preemptions;
  stats_.proposals = proposals.proposals;
  stats_.proposed_tokens = proposals.proposed_tokens;
  stats_.accepted_tokens = proposals.accepted_tokens;
  stats_.history_bytes = scheduler.proposals().history_bytes();
  stats_.corrupted = counters.corrupted;
  stats_.constraints_failed = counters.constraints_failed;
  const StateStore& states = scheduler.states();
  stats_.state_slots_total = states.num_slots();
  stats_.state_slots_free = states.num_free_slots();
  stats_.state_slots_used = states.empty() ? 0 : stats_.running;
  stats_.window_pages_total = states.num_window_pages();
  stats_.window_pages_free = states.num_free_window_pages();
  stats_.window_pages_used = states.NumWindowPagesOf(scheduler.running());
  stats_.snapshots_taken = states.counters().taken;
  stats_.snapshots_resumed = states.counters().resumed;
  stats_.snapshots_evicted = states.counters().evicted;
}

}  // namespace diffserve
