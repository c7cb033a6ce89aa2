// SPDX-License-Identifier: Apache-2.0
#include "server/router/children/model_children.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "kernels/process/check.h"
#include "kernels/process/log.h"
#include "kernels/process/thread_registry.h"
#include "server/api/head/parent_secret.h"
#include "server/router/children/ready_line.h"

namespace diffserve {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kGoodRun{60};  // after which earlier failures no longer count
constexpr int kRetryAfterWait = 5;
// Exit codes of `diffserve serve`: it could not load, and its flags are wrong.
constexpr int kFailed = 1, kWrongUsage = 2;
// The waiting requests of a client are limited to this multiple of what they leave to others.
constexpr size_t kClientToOthersRatioMax = 7;

int SecondsUntil(std::chrono::steady_clock::time_point time,
                 std::chrono::steady_clock::time_point now) {
  return static_cast<int>(std::chrono::ceil<std::chrono::seconds>(time - now).count());
}

}  // namespace

ModelChildren::ModelChildren(std::vector<ChildModel> models, ModelChildrenOptions options)
    : options_(std::move(options)), wake_event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  DS_CHECK(wake_event_ >= 0, "no descriptor is left for events");
  for (ChildModel& model : models) slots_.push_back({.model = std::move(model)});
  thread_ = std::thread([this] { Run(); });
}

ModelChildren::~ModelChildren() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  Wake();
  thread_.join();
  close(wake_event_);
}

void ModelChildren::Wake() const { eventfd_write(wake_event_, 1); }

// Why a request for this model is refused now.
Status ModelChildren::Refusal(const Slot& slot) const {
  if (draining_) return Status(StatusCode::kUnavailable, "the server is draining");
  const Clock::time_point now = Clock::now();
  if (slot.state == ModelState::kUnloaded && slot.not_before > now) {
    const int seconds = SecondsUntil(slot.not_before, now);
    return Status(StatusCode::kUnavailable,
                  "the process of model " + slot.model.name + " has failed " +
                      std::to_string(slot.failures_in_a_row) +
                      " times in a row; it may start again in " + std::to_string(seconds) + " s")
        .WithRetryAfter(seconds);
  }
  return {};
}

// REQUIRES: the lock, and a loaded model.
ChildUse ModelChildren::UseOf(size_t model) {
  Slot& slot = slots_[model];
  ++slot.report.in_flight;
  return {new ChildAddress(slot.address), [this, model](const ChildAddress* address) {
            Release(model, address->run);
            delete address;
          }};
}

void ModelChildren::Release(size_t model, uint64_t run) {
  std::lock_guard lock(mutex_);
  Slot& slot = slots_[model];
  if (slot.address.run != run || slot.state == ModelState::kUnloaded) return;
  slot.last_used = Clock::now();
  if (--slot.report.in_flight > 0) return;
  const auto wants_room = [](const Slot& other) {
    return other.state == ModelState::kUnloaded && (!other.waiting.empty() || other.load_wanted);
  };
  const auto idle_timeout = options_.limits.idle_timeout;
  const bool may_be_next = idle_timeout.count() > 0 && slot.last_used + idle_timeout < next_wake_;
  if (may_be_next || std::ranges::any_of(slots_, wants_room)) Wake();
}

std::optional<Result<ChildUse>> ModelChildren::TryUse(size_t model, const std::string& client) {
  std::lock_guard lock(mutex_);
  Slot& slot = slots_[model];
  slot.held_down = false;
  if (Status refusal = Refusal(slot); !refusal.ok()) return refusal;
  if (slot.state == ModelState::kLoaded) return UseOf(model);
  if (Status full = CheckRoom(client); !full.ok()) return full;
  return std::nullopt;
}

std::shared_ptr<ModelChildren::Wait> ModelChildren::Ask(size_t model, const std::string& client,
                                                        std::function<void()> wake) {
  auto wait = std::make_shared<Wait>(std::move(wake));
  {
    std::lock_guard lock(mutex_);
    slots_[model].waiting.push_back({wait, client, Clock::now()});
  }
  Wake();
  return wait;
}

// Whether another request of the client may wait. Those whose owner has gone are forgotten.
Status ModelChildren::CheckRoom(const std::string& client) {
  size_t all = 0, own = 0;
  for (Slot& slot : slots_) {
    std::erase_if(slot.waiting, [](const Waiting& waiting) { return waiting.wait.expired(); });
    all += slot.waiting.size();
    own += static_cast<size_t>(std::ranges::count(slot.waiting, client, &Waiting::client));
  }
  const size_t left = options_.max_waiting - std::min(all, options_.max_waiting);
  if (own < kClientToOthersRatioMax * left) return {};
  return Status(StatusCode::kResourceExhausted,
                std::to_string(all) + " requests wait for their models to be loaded, " +
                    std::to_string(own) + " of this client; the limit is " +
                    std::to_string(options_.max_waiting) +
                    ", an eighth of it kept for others; retry later")
      .WithRetryAfter(kRetryAfterWait);
}

Status ModelChildren::Load(size_t model, const std::string& client) {
  std::lock_guard lock(mutex_);
  Slot& slot = slots_[model];
  DS_RETURN_IF_ERROR(Refusal(slot));
  slot.held_down = false;
  if (slot.state == ModelState::kUnloaded || slot.state == ModelState::kStopping)
    slot.load_wanted = WantedLoad{client, Clock::now()};
  Wake();
  return {};
}

void ModelChildren::Unload(size_t model) {
  std::lock_guard lock(mutex_);
  Slot& slot = slots_[model];
  slot.held_down = true;
  slot.load_wanted.reset();
  if (slot.state == ModelState::kLoading || slot.state == ModelState::kLoaded) Stop(slot, "unload");
  Wake();
}

std::vector<ChildReport> ModelChildren::Reports() const {
  std::lock_guard lock(mutex_);
  std::vector<ChildReport> reports;
  for (const Slot& slot : slots_) {
    ChildReport report = slot.report;
    report.state = slot.state;
    report.waiting = slot.waiting.size();
    report.bytes = slot.model.bytes;
    report.address = slot.address;
    reports.push_back(report);
  }
  return reports;
}

Status ModelChildren::Ready() const {
  std::lock_guard lock(mutex_);
  if (draining_) return Status(StatusCode::kUnavailable, "the server is draining");
  for (const Slot& slot : slots_) {
    if (slot.model.pinned && !slot.held_down && slot.state != ModelState::kLoaded) {
      return Status(StatusCode::kUnavailable,
                    "the pinned model " + slot.model.name + " is not loaded" + slot.why_not);
    }
  }
  return {};
}

void ModelChildren::Drain(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  for (Slot& slot : slots_) {
    if (slot.state == ModelState::kLoading || slot.state == ModelState::kLoaded)
      Stop(slot, "drain");
    if (slot.state == ModelState::kStopping) slot.kill_at = std::min(slot.kill_at, deadline);
  }
  Wake();
  ended_.wait(lock, [this] {
    return std::ranges::all_of(
        slots_, [](const Slot& slot) { return slot.state == ModelState::kUnloaded; });
  });
}

void ModelChildren::FailAll(Slot& slot, const Status& status, Fills& fills) {
  for (const Waiting& waiting : slot.waiting) {
    if (auto wait = waiting.wait.lock())
      fills.push_back([wait = std::move(wait), status] { wait->Fill(status); });
  }
  slot.waiting.clear();
  slot.load_wanted.reset();
}

void ModelChildren::Run() {
  const NamedThread named("children", "processes");
  for (;;) {
    Fills fills;
    Clock::time_point until;
    {
      std::lock_guard lock(mutex_);
      if (stopping_) break;
      until = next_wake_ = Tick(fills);
    }
    for (const auto& fill : fills) fill();
    fills.clear();
    Poll(until, fills);
    for (const auto& fill : fills) fill();
  }
  for (Slot& slot : slots_) slot.process.reset();
}

// Ends the waits that have lasted too long; when the next one has.
ModelChildren::Clock::time_point ModelChildren::DropOverdue(Slot& slot, Clock::time_point now,
                                                            Fills& fills) const {
  std::erase_if(slot.waiting, [&](const Waiting& waiting) {
    auto wait = waiting.wait.lock();
    if (wait == nullptr) return true;
    if (now - waiting.since < options_.load_wait) return false;
    Status status = Status(StatusCode::kUnavailable,
                           "model " + slot.model.name + " could not be loaded in time: " +
                               (slot.state == ModelState::kUnloaded
                                    ? "other models are busy and take the room"
                                    : "its process does not answer yet"))
                        .WithRetryAfter(kRetryAfterWait);
    fills.push_back([wait = std::move(wait), status = std::move(status)] { wait->Fill(status); });
    return true;
  });
  return slot.waiting.empty() ? Clock::time_point::max()
                              : slot.waiting.front().since + options_.load_wait;
}

std::vector<ResidentModel> ModelChildren::View() const {
  std::vector<ResidentModel> models;
  std::vector<ModelWant> wants;
  for (const Slot& slot : slots_) {
    ResidentModel model = {.state = slot.state,
                           .bytes = slot.model.gpu ? 0 : slot.model.bytes,
                           .gpu = slot.model.gpu,
                           .gpu_share = slot.model.gpu_share,
                           .pinned = slot.model.pinned,
                           .in_flight = slot.report.in_flight,
                           .last_used = slot.last_used,
                           .not_before = slot.not_before};
    const bool is_kept = slot.model.pinned && !slot.held_down && slot.why_not.empty();
    if (is_kept && slot.state == ModelState::kUnloaded)
      model.wanted_since = Clock::time_point::min();
    for (const Waiting& waiting : slot.waiting)
      wants.push_back({models.size(), waiting.client, waiting.since});
    if (slot.load_wanted)
      wants.push_back({models.size(), slot.load_wanted->client, slot.load_wanted->since});
    models.push_back(model);
  }
  SetWanted(std::move(wants), models);
  return models;
}

// Acts on everything that has changed; when to look again. REQUIRES: the lock.
ModelChildren::Clock::time_point ModelChildren::Tick(Fills& fills) {
  const Clock::time_point now = Clock::now();
  Clock::time_point next = Clock::time_point::max();
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (draining_) FailAll(slot, Status(StatusCode::kUnavailable, "the server is draining"), fills);
    next = std::min(next, DropOverdue(slot, now, fills));
    if (slot.state == ModelState::kLoaded) {
      slot.load_wanted.reset();
      for (const Waiting& waiting : std::exchange(slot.waiting, {})) {
        if (auto wait = waiting.wait.lock())
          fills.push_back([wait, use = UseOf(i)] { wait->Fill(use); });
      }
    }
    if (slot.state == ModelState::kStopping) {
      if (now >= slot.kill_at)
        slot.process->Signal(SIGKILL);
      else
        next = std::min(next, slot.kill_at);
    }
  }
  if (draining_) {
    ended_.notify_all();
    return next;
  }
  const ResidencyActions actions = PlanResidency(View(), options_.limits, now);
  for (const auto& [model, reason] : actions.stop)
    Stop(slots_[model], reason == StopReason::kIdle ? "idle" : "room");
  for (const size_t model : actions.start) Start(slots_[model], fills);
  return std::min(next, actions.next.value_or(next));
}

void ModelChildren::Start(Slot& slot, Fills& fills) {
  Log(LogLevel::kInfo, "model_starting", {{"model", slot.model.name}});
  ++slot.report.starts;
  slot.report.exit_code.reset();
  slot.report.in_flight = 0;
  slot.why_not.clear();
  slot.address = {.run = next_run_++, .secret = NewParentSecret()};
  Result<ChildProcess> started = ChildProcess::Start(
      slot.model.arguments, options_.hidden_variables, slot.address.secret);
  if (!started.ok()) return OnFailure(slot, started.status().message(), fills);
  slot.process.emplace(std::move(started).value());
  slot.state = ModelState::kLoading;
  slot.reads_out = slot.reads_err = true;
}

void ModelChildren::Stop(Slot& slot, const char* reason) {
  Log(LogLevel::kInfo, "model_stopping", {{"model", slot.model.name}, {"reason", reason}});
  if (reason == std::string_view("idle")) ++slot.report.stops_idle;
  if (reason == std::string_view("room")) ++slot.report.stops_room;
  slot.state = ModelState::kStopping;
  slot.kill_at = Clock::now() + options_.stop_grace;
  slot.process->Signal(SIGTERM);
}

void ModelChildren::OnFailure(Slot& slot, const std::string& how, Fills& fills) {
  ++slot.report.failures;
  ++slot.failures_in_a_row;
  slot.not_before = Clock::now() + RestartDelay(slot.failures_in_a_row);
  Log(LogLevel::kError, "model_failed",
      {{"model", slot.model.name},
       {"while", slot.state == ModelState::kLoaded ? "serving" : "loading"},
       {"how", how},
       {"failures_in_a_row", std::to_string(slot.failures_in_a_row)},
       {"next_start", slot.model.pinned && slot.why_not.empty() ? "by itself" : "when asked for"}});
  if (slot.state == ModelState::kLoaded) return;  // nothing waits for a loaded model
  FailAll(slot,
          Status(StatusCode::kUnavailable, "model " + slot.model.name + " did not load (" + how +
                                               "); the server's log has " + "the reason")
              .WithRetryAfter(std::max(1, SecondsUntil(slot.not_before, Clock::now()))),
          fills);
}

// Whether a further try would end in the same way: a wrong file, too little memory, wrong flags.
bool ModelChildren::CannotLoad(const Slot& slot, const ChildProcess::End& end) {
  return slot.state == ModelState::kLoading &&
         (end.exit_code == kWrongUsage || (end.exit_code == kFailed && !slot.model.is_fetched));
}

void ModelChildren::OnEnd(Slot& slot, const ChildProcess::End& end, Fills& fills) {
  ReadPipes(slot);
  if (slot.state == ModelState::kLoaded && Clock::now() - slot.loaded_at >= kGoodRun)
    slot.failures_in_a_row = 0;
  if (slot.state == ModelState::kStopping) {
    slot.failures_in_a_row = 0;
    Log(LogLevel::kInfo, "model_stopped", {{"model", slot.model.name}, {"how", end.text}});
  } else {
    slot.report.exit_code = end.exit_code;
    if (slot.model.pinned && CannotLoad(slot, end)) {
      slot.why_not = ": its process ended with " + end.text +
                     "; the server's log has the reason, and POST /models/load tries again";
    }
    OnFailure(slot, end.text, fills);
  }
  slot.state = ModelState::kUnloaded;
  slot.report.in_flight = 0;
  slot.process.reset();
}

// The process's own lines join this process's.
void ModelChildren::ReadPipes(Slot& slot) {
  const auto log = [&slot](std::string_view line) { LogLineOfModel(slot.model.name, line); };
  if (slot.reads_err) slot.reads_err = slot.err.Read(slot.process->err(), log);
  if (!slot.reads_out) return;
  slot.reads_out = slot.out.Read(slot.process->out(), [&](std::string_view line) {
    const auto ports = ParseReadyLine(line);
    if (!ports || slot.state != ModelState::kLoading) return log(line);
    slot.address.http_port = ports->http;
    slot.address.grpc_port = ports->grpc;
    slot.state = ModelState::kLoaded;
    slot.last_used = slot.loaded_at = Clock::now();
    Log(LogLevel::kInfo, "model_loaded", {{"model", slot.model.name}});
  });
}

// Waits for an event of a process, for Wake, or until the time.
void ModelChildren::Poll(Clock::time_point until, Fills& fills) {
  // Only this thread changes the processes, so the descriptors stay valid without the lock.
  std::vector<pollfd> events = {{wake_event_, POLLIN, 0}};
  for (const Slot& slot : slots_) {
    if (!slot.process) continue;
    events.push_back({slot.process->exit_event(), POLLIN, 0});
    if (slot.reads_out) events.push_back({slot.process->out(), POLLIN, 0});
    if (slot.reads_err) events.push_back({slot.process->err(), POLLIN, 0});
  }
  timespec timeout{};
  if (until != Clock::time_point::max()) {
    const auto left = std::max(until - Clock::now(), Clock::duration::zero());
    const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
    timeout.tv_sec = seconds.count();
    timeout.tv_nsec = std::chrono::nanoseconds(left - seconds).count();
  }
  ppoll(events.data(), events.size(), until == Clock::time_point::max() ? nullptr : &timeout,
        nullptr);
  eventfd_t ignored;
  eventfd_read(wake_event_, &ignored);
  std::lock_guard lock(mutex_);
  for (Slot& slot : slots_) {
    if (!slot.process) continue;
    ReadPipes(slot);
    if (const auto end = slot.process->TakeEnd()) OnEnd(slot, *end, fills);
  }
}

}  // namespace diffserve
