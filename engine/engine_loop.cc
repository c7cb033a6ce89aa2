#include "engine/engine_loop.h"

#include <algorithm>
#include <iterator>
#include <random>
#include <utility>

#include "kernels/base/check.h"

namespace diffserve {
namespace {

using Clock = std::chrono::steady_clock;

int64_t NowNs() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

uint64_t RandomKey() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

EngineLoop::EngineLoop(const EngineOptions& options, std::unique_ptr<Executor> executor,
                       Inbox& inbox, Outputs outputs)
    : executor_(std::move(executor)),
      inbox_(inbox),
      outputs_(std::move(outputs)),
      scheduler_(options, PrefixIndex::Options{.hash_key = RandomKey(),
                                               .record_events = outputs_.kv_events != nullptr}) {
  DS_CHECK(executor_->depth() == 1 || executor_->depth() == 2, "an executor takes one step or two");
  Publish();
}

void EngineLoop::Run() {
  for (;;) {
    const bool idle = !scheduler_.HasWork() && launched_.empty();
    if (idle) busy_since_ns_ = 0;
    Inbox::Incoming incoming = inbox_.Take(/*wait=*/idle);
    if (idle) busy_since_ns_ = NowNs();
    if (incoming.failed) return;
    const bool stop = incoming.stop;
    Accept(std::move(incoming));
    const int left_running = Launch() ? executor_->depth() - 1 : 0;
    while (std::ssize(launched_) > left_running) Collect();
    Publish();
    busy_since_ns_ = NowNs();
    if (stop) return;
  }
}

// One step, four calls: Plan and Launch here, Collect and Commit below. With an executor of depth 2
// the next step is planned and launched while this one runs, so the device does not wait for the
// host. False: there is nothing to launch, or not before what runs is committed.
bool EngineLoop::Launch() {
  if (!scheduler_.HasWork()) return false;
  LaunchedStep step;
  step.times.begin = Clock::now();
  step.plan = scheduler_.Plan();
  step.times.planned = Clock::now();
  if (step.plan.sequences.empty()) return false;
  recorder_.OnPlan(step.plan, step.times.planned);
  for (const PlannedSequence& sequence : step.plan.sequences) {
    if (sequence.first_step) executor_->Begin(scheduler_.request(sequence.request));
  }
  executor_->Launch(step.plan);
  launched_.push_back(std::move(step));
  return true;
}

void EngineLoop::Collect() {
  const StepResult result = executor_->Collect();
  LaunchedStep step = std::move(launched_.front());
  launched_.pop_front();
  step.times.executed = Clock::now();
  std::ranges::move(scheduler_.Commit(result), std::back_inserter(events_));
  step.times.committed = Clock::now();
  recorder_.OnStep(step.plan, step.times);
}

// New requests join the line; cancelled ones leave it, and their pages are free for the step that
// follows.
void EngineLoop::Accept(Inbox::Incoming incoming) {
  for (Request& request : incoming.requests) {
    recorder_.OnAdd(request);
    scheduler_.Add(std::move(request));
  }
  for (const Inbox::Ending& cancel : incoming.cancels) End(cancel.request, cancel);
  if (!incoming.end_all) return;
  while (!scheduler_.waiting().empty())
    End(scheduler_.waiting().back()->request.id, *incoming.end_all);
  while (!scheduler_.running().empty())
    End(scheduler_.running().back()->request.id, *incoming.end_all);
}

void EngineLoop::End(RequestId request, const Inbox::Ending& how) {
  if (std::optional<TokenEvent> event = scheduler_.End(request, how.finish, how.error))
    events_.push_back(std::move(*event));
}

// The executor keeps what it has of a request that has ended until no launched step may contain it.
void EngineLoop::LetGo() {
  for (const TokenEvent& event : events_) {
    if (event.finish == FinishReason::kNone || !recorder_.HasStarted(event.request)) continue;
    leaving_.push_back({event.request, launched_.empty() ? 0 : launched_.back().plan.step});
  }
  while (!leaving_.empty() &&
         (launched_.empty() || leaving_.front().last_step < launched_.front().plan.step)) {
    executor_->End(leaving_.front().request);
    leaving_.pop_front();
  }
}

// Statistics first: whoever has seen an event finds it counted.
void EngineLoop::Publish() {
  const Clock::time_point now = Clock::now();
  LetGo();
  for (const TokenEvent& event : events_) recorder_.OnEvent(event, now);
  recorder_.ReadGauges(scheduler_);
  outputs_.publish(recorder_.stats());  // before the queue lets go of what has begun to run: a
                                        // snapshot misses nobody
  inbox_.SetWaiting(static_cast<int>(scheduler_.waiting().size()), scheduler_.waiting_tokens());
  if (std::vector<KvEvent> changes = scheduler_.TakeKvEvents(); !changes.empty())
    outputs_.kv_events(std::move(changes));
  for (TokenEvent& event : std::exchange(events_, {})) outputs_.deliver(std::move(event));
}

double EngineLoop::seconds_since_progress() const {
  const int64_t since = busy_since_ns_;
  return since == 0 ? 0.0 : static_cast<double>(NowNs() - since) * 1e-9;
}

}  // namespace diffserve
