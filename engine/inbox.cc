#include "engine/inbox.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/scheduler.h"

namespace diffserve {
namespace {

constexpr char kShuttingDown[] = "the server is shutting down";

}  // namespace

void Inbox::CountRefusal(RefusalReason reason) {
  std::lock_guard lock(mutex_);
  ++refused_[static_cast<size_t>(reason)];
}

Status Inbox::Refuse(RefusalReason reason, StatusCode code, std::string message) {
  ++refused_[static_cast<size_t>(reason)];
  return Status(code, std::move(message));
}

Status Inbox::Submit(Request request) {
  const Status fits = CheckFits(options_, request);
  const auto tokens = static_cast<int64_t>(request.prompt.size());
  const auto too_many = [](int64_t found, const char* what, int64_t limit) {
    return std::to_string(found) + " " + what + " wait already, the limit is " +
           std::to_string(limit) + "; retry later";
  };
  if (request.arrival == std::chrono::steady_clock::time_point())
    request.arrival = std::chrono::steady_clock::now();
  {
    std::lock_guard lock(mutex_);
    if (draining_ || stop_)
      return Refuse(RefusalReason::kDraining, StatusCode::kUnavailable, kShuttingDown);
    if (failed_)
      return Refuse(RefusalReason::kDraining, StatusCode::kUnavailable,
                    "the engine has stopped after a failure");
    if (!fits.ok()) {
      ++refused_[static_cast<size_t>(RefusalReason::kTooLong)];
      return fits;
    }
    if (waiting_requests_ >= options_.max_waiting_requests) {
      return Refuse(RefusalReason::kQueueFull, StatusCode::kResourceExhausted,
                    too_many(waiting_requests_, "requests", options_.max_waiting_requests));
    }
    if (waiting_requests_ > 0 && waiting_tokens_ + tokens > options_.max_waiting_tokens) {
      return Refuse(RefusalReason::kTokensFull, StatusCode::kResourceExhausted,
                    too_many(waiting_tokens_, "prompt tokens", options_.max_waiting_tokens));
    }
    const bool is_new = live_.emplace(request.id, false).second;
    DS_CHECK(is_new, "a request id is used once");
    ++waiting_requests_;
    waiting_tokens_ += tokens;
    requests_.push_back(std::move(request));
  }
  wake_.notify_one();
  return Status();
}

void Inbox::Cancel(RequestId request, FinishReason as) {
  {
    std::lock_guard lock(mutex_);
    const auto it = live_.find(request);
    if (it == live_.end() || std::exchange(it->second, true)) return;
    cancels_.push_back({request, as, Status()});
  }
  wake_.notify_one();
}

void Inbox::Drain(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  if (all_done_.wait_until(lock, deadline, [&] { return live_.empty(); })) return;
  end_all_ = true;
  wake_.notify_one();
  all_done_.wait_for(lock, std::chrono::milliseconds(options_.drain_grace_ms),
                     [&] { return live_.empty(); });
}

void Inbox::Stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
}

Inbox::Incoming Inbox::Take(bool wait) {
  std::unique_lock lock(mutex_);
  if (wait) {
    wake_.wait(lock, [&] {
      return stop_ || failed_ || end_all_ || !requests_.empty() || !cancels_.empty();
    });
  }
  Incoming incoming;
  incoming.requests = std::exchange(requests_, {});
  incoming.cancels = std::exchange(cancels_, {});
  incoming.stop = stop_;
  incoming.failed = failed_;
  if (stop_) {
    incoming.end_all = Ending{0, FinishReason::kCancelled, Status()};
  } else if (std::exchange(end_all_, false)) {
    incoming.end_all = Ending{0, FinishReason::kError,
                              Status(StatusCode::kUnavailable, kShuttingDown)};
  }
  return incoming;
}

void Inbox::SetWaiting(int requests, int64_t tokens) {
  std::lock_guard lock(mutex_);
  if (failed_) return;
  waiting_requests_ = requests + static_cast<int>(requests_.size());
  waiting_tokens_ = tokens;
  for (const Request& request : requests_)
    waiting_tokens_ += static_cast<int64_t>(request.prompt.size());
}

bool Inbox::IsLive(RequestId request) const {
  std::lock_guard lock(mutex_);
  return live_.contains(request);
}

void Inbox::Finish(RequestId request) {
  std::lock_guard lock(mutex_);
  live_.erase(request);
  if (live_.empty()) all_done_.notify_all();
}

std::vector<RequestId> Inbox::Fail() {
  std::vector<RequestId> ended;
  {
    std::lock_guard lock(mutex_);
    failed_ = true;
    requests_.clear();
    cancels_.clear();
    waiting_requests_ = 0;
    waiting_tokens_ = 0;
    for (const auto& [request, cancelled] : live_) ended.push_back(request);
  }
  std::ranges::sort(ended);
  wake_.notify_one();
  return ended;
}

bool Inbox::failed() const {
  std::lock_guard lock(mutex_);
  return failed_;
}

void Inbox::Describe(EngineStats& stats) const {
  std::lock_guard lock(mutex_);
  stats.waiting = waiting_requests_;
  stats.waiting_tokens = waiting_tokens_;
  stats.refused = refused_;
  stats.draining = draining_;
  stats.failed = failed_;
}

}  // namespace diffserve
