#include "engine/engine_loop.h"

#include <algorithm>
#include <iterator>
#include <random>
#include <utility>

namespace diffserve {
namespace {

using Clock = std::chrono::steady_clock;

int64_t NowNs() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

uint64_t RandomKey() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

EngineLoop::EngineLoop(const EngineOptions& options, std::unique_ptr<Executor> executor, Inbox& inbox, Outputs outputs)
    : executor_(std::move(executor)),
      inbox_(inbox),
      outputs_(std::move(outputs)),
      scheduler_(options, PrefixIndex::Options{.hash_key = RandomKey()}) {
  Publish();
}

void EngineLoop::Run() {
  for (;;) {
    const bool idle = !scheduler_.HasWork();
    if (idle) busy_since_ns_ = 0;
    Inbox::Incoming incoming = inbox_.Take(/*wait=*/idle);
    if (idle) busy_since_ns_ = NowNs();
    if (incoming.failed) return;
    const bool stop = incoming.stop;
    Accept(std::move(incoming));
    if (!stop && scheduler_.HasWork()) Step();
    Publish();
    busy_since_ns_ = NowNs();
    if (stop) return;
  }
}

// One step, four calls.
void EngineLoop::Step() {
  StatsRecorder::StepTimes times;
  times.begin = Clock::now();
  const StepPlan plan = scheduler_.Plan();
  times.planned = Clock::now();
  recorder_.OnPlan(plan, times.planned);
  for (const PlannedSequence& sequence : plan.sequences) {
    if (sequence.first_step) executor_->Begin(scheduler_.request(sequence.request));
  }
  executor_->Launch(plan);
  const StepResult result = executor_->Collect();
  times.executed = Clock::now();
  std::ranges::move(scheduler_.Commit(result), std::back_inserter(events_));
  times.committed = Clock::now();
  recorder_.OnStep(plan, times);
}

// New requests join the line; cancelled ones leave it, and their pages are free for the step that follows.
void EngineLoop::Accept(Inbox::Incoming incoming) {
  for (Request& request : incoming.requests) {
    recorder_.OnAdd(request);
    scheduler_.Add(std::move(request));
  }
  for (const Inbox::Ending& cancel : incoming.cancels) End(cancel.request, cancel);
  if (!incoming.end_all) return;
  while (!scheduler_.waiting().empty()) End(scheduler_.waiting().back()->request.id, *incoming.end_all);
  while (!scheduler_.running().empty()) End(scheduler_.running().back()->request.id, *incoming.end_all);
}

void EngineLoop::End(RequestId request, const Inbox::Ending& how) {
  if (std::optional<TokenEvent> event = scheduler_.End(request, how.finish, how.error)) events_.push_back(std::move(*event));
}

// Statistics first: whoever has seen an event finds it counted.
void EngineLoop::Publish() {
  const Clock::time_point now = Clock::now();
  for (const TokenEvent& event : events_) {
    if (event.finish != FinishReason::kNone && recorder_.HasStarted(event.request)) executor_->End(event.request);
    recorder_.OnEvent(event, now);
  }
  recorder_.ReadGauges(scheduler_);
  inbox_.SetWaiting(static_cast<int>(scheduler_.waiting().size()), scheduler_.waiting_tokens());
  outputs_.publish(recorder_.stats());
  for (TokenEvent& event : std::exchange(events_, {})) outputs_.deliver(std::move(event));
}

double EngineLoop::seconds_since_progress() const {
  const int64_t since = busy_since_ns_;
  return since == 0 ? 0.0 : static_cast<double>(NowNs() - since) * 1e-9;
}

}  // namespace diffserve
