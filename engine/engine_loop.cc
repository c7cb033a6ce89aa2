// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_loop.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "kernels/process/check.h"
#include "kernels/process/crash_report.h"
#include "kernels/process/thread_registry.h"

namespace diffserve {
namespace {

using Seconds = std::chrono::duration<double>;

double SecondsOf(TimePoint time) { return Seconds(time.time_since_epoch()).count(); }

}  // namespace

EngineLoop::EngineLoop(const EngineOptions& options, std::unique_ptr<Executor> executor,
                       Inbox& inbox, World world)
    : world_(std::move(world)),
      executor_(std::move(executor)),
      depth_(options.speculative_tokens > 0 ? 1 : executor_->depth()),
      max_step_seconds_(options.max_step_ms / 1e3),
      inbox_(inbox),
      scheduler_(options,
                 {.hash_key = world_.hash_key,
                  .hash_mask = world_.hash_mask,
                  .record_events = world_.kv_events != nullptr},
                 world_.tier) {
  DS_CHECK(depth_ == 1 || depth_ == 2, "an executor takes one step or two");
  if (world_.tier != nullptr) world_.tier->OnDone([&inbox] { inbox.Wake(); });
  Publish();
}

bool EngineLoop::Turn() {
  const bool was_idle = idle();
  if (was_idle) busy_since_ns_ = 0;
  Inbox::Incoming incoming = Take(was_idle);
  if (was_idle) {
    busy_since_ns_ = NowNs();
    recorder_.OnWake(world_.now());
  }
  if (incoming.failed) return false;
  const bool stop = incoming.stop;
  Accept(std::move(incoming));
  scheduler_.FinishTransfers();
  scheduler_.GiveUpSlowLoads(SecondsOf(world_.now()));
  EndOverdue();
  const int left_running = Launch() ? depth_ - 1 : 0;
  while (std::ssize(launched_) > left_running) Collect();
  scheduler_.FinishTransfers();
  Publish();
  busy_since_ns_ = NowNs();
  return !stop;
}

Inbox::Incoming EngineLoop::Take(bool wait) {
  const ScopedThreadActivity at("the inbox");
  std::optional<TimePoint> deadline;
  if (const std::optional<double> seconds = scheduler_.transfers().NextDeadline())
    deadline = TimePoint(std::chrono::ceil<TimePoint::duration>(Seconds(*seconds)));
  return inbox_.Take(wait, deadline);
}

StepCosts EngineLoop::CostsAt(TimePoint now) const {
  StepCosts costs = {
      .rows = recorder_.row_costs(), .draft = recorder_.draft_cost(), .now = SecondsOf(now)};
  const std::optional<StepCost>& cost = recorder_.step_cost();
  if (max_step_seconds_ > 0) {
    costs.mixed_tokens_max = cost ? cost->TokensWithin(max_step_seconds_,
                                                       scheduler_.max_step_tokens())
                                  : 0;
  }
  if (cost) {
    const double tokens_max = scheduler_.max_step_tokens();
    costs.overhead_tokens = static_cast<int>(std::min(tokens_max, cost->overhead_tokens()));
    costs.token_seconds = cost->token_seconds;
  }
  return costs;
}

// One step takes four calls: Plan and Launch here, Collect and Commit below. With a depth of 2 the
// next step is planned and launched while this one runs, so the device does not wait for the host.
// Returns false if there is nothing to launch, or nothing before the running step is committed.
bool EngineLoop::Launch() {
  is_stalled_ = false;
  if (!scheduler_.HasWork()) return false;
  StepRecord step;
  step.begin = world_.now();
  const StepPlan plan = scheduler_.Plan(CostsAt(step.begin));
  step.planned = world_.now();
  if (plan.sequences.empty()) return is_stalled_ = launched_.empty(), false;
  recorder_.OnPlan(plan, step.planned);
  NoteStep(plan.step, static_cast<int>(plan.sequences.size()), plan.num_tokens());
  {
    const ScopedThreadActivity at("the launch of a step");
    executor_->Launch(plan);
  }
  step.step = plan.step;
  step.num_tokens = plan.num_tokens();
  step.num_sequences = static_cast<int>(plan.sequences.size());
  step.draft = plan.draft_load();
  step.draft_seconds = executor_->draft_seconds();
  launched_.push_back(step);
  return true;
}

StepResult EngineLoop::Await() {
  const ScopedThreadActivity at("the results of a step");
  return executor_->Collect();
}

void EngineLoop::Collect() {
  const StepResult result = Await();
  StepRecord step = launched_.front();
  launched_.pop_front();
  step.executed = world_.now();
  std::vector<TokenEvent> events = scheduler_.Commit(result);
  events_.insert(events_.end(), std::move_iterator(events.begin()),
                 std::move_iterator(events.end()));
  step.committed = world_.now();
  recorder_.OnStep(step);
}

// New requests join the queue. Cancelled ones leave it, and their pages are free for the next step.
void EngineLoop::Accept(Inbox::Incoming incoming) {
  if (incoming.cache_reset.any()) scheduler_.ResetPrefixCache(incoming.cache_reset);
  for (Request& request : incoming.requests) {
    recorder_.OnAdd(request);
    scheduler_.Add(std::move(request));
  }
  for (const Inbox::Ending& cancel : incoming.cancels) End(cancel.request, cancel);
  if (!incoming.end_all) return;
  for (const Sequence* sequence : scheduler_.queue().ByArrival())
    End(sequence->request.id, *incoming.end_all);
  for (const RequestId request : scheduler_.transfers().LoadingRequests())
    End(request, *incoming.end_all);
  while (!scheduler_.running().empty())
    End(scheduler_.running().back()->request.id, *incoming.end_all);
}

void EngineLoop::End(RequestId request, const Inbox::Ending& how) {
  if (std::optional<TokenEvent> event = scheduler_.End(request, how.finish, how.error))
    events_.push_back(std::move(*event));
}

// Refuses the requests that could not start in time.
void EngineLoop::EndOverdue() {
  if (scheduler_.queue().num_waiting() == 0) return;
  const TimePoint now = world_.now();
  std::vector<const Request*> overdue;
  for (const auto& [id, client] : scheduler_.queue().clients()) {
    for (const auto& sequence : client.waiting) {
      if (!sequence->admitted_before && sequence->request.start_by <= now)
        overdue.push_back(&sequence->request);
    }
  }
  for (const Request* request : overdue)
    End(request->id, {request->id, FinishReason::kError, inbox_.RefuseOverdue(*request, now)});
}

// Publishes statistics before events, so that an event is always counted when a reader sees it.
void EngineLoop::Publish() {
  const TimePoint now = world_.now();
  for (TokenEvent& event : events_) recorder_.OnEvent(event, now);
  recorder_.ReadGauges(scheduler_);
  world_.publish(recorder_.stats());  // before SetQueue: a started request is counted as waiting or
                                      // running at any time
  inbox_.SetQueue(recorder_.QueueOf(scheduler_));
  if (std::vector<KvEvent> changes = scheduler_.TakeKvEvents(); !changes.empty())
    world_.kv_events(std::move(changes));
  for (TokenEvent& event : std::exchange(events_, {})) world_.deliver(std::move(event));
}

void EngineLoop::KeepOffers(TimePoint deadline) {
  scheduler_.FinishTransfers();
  while (scheduler_.transfers().HasOffers() || scheduler_.transfers().HoldsPages() ||
         (world_.tier != nullptr && !world_.tier->IsSettled())) {
    if (!inbox_.AwaitWake(deadline)) return;
    scheduler_.FinishTransfers();
  }
}

double EngineLoop::seconds_since_progress() const {
  const int64_t since = busy_since_ns_;
  return since == 0 ? 0.0 : static_cast<double>(NowNs() - since) * 1e-9;
}

}  // namespace diffserve
