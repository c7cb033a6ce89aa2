// SPDX-License-Identifier: Apache-2.0
#include "engine/inbox.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>

#include "engine/policy/request_fit.h"

namespace diffserve {
namespace {

constexpr char kShuttingDown[] = "the server is shutting down";

// A client's queue space is limited to this multiple of what it leaves to others, so that it can
// never fill the queue.
constexpr int kClientToOthersRatioMax = EngineOptions::kClientToOthersRatioMax;

Status TooManyWait(int64_t own, int64_t all, const char* what, int64_t limit) {
  return Status(StatusCode::kResourceExhausted,
                std::to_string(all) + " " + what + " wait already, " + std::to_string(own) +
                    " of this client; the limit is " + std::to_string(limit) +
                    ", an eighth of it kept for others; retry later");
}

std::string SecondsText(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", seconds);
  return text;
}

void Count(const Request& request, QueueState& queue) {
  ClientShare& share = queue.Of(request.client);
  ++share.requests;
  share.tokens += static_cast<int64_t>(request.prompt.size());
}

int WholeSeconds(double seconds) { return std::max(1, static_cast<int>(std::ceil(seconds))); }

}  // namespace

void Inbox::CountRefusal(RefusalReason reason) {
  std::lock_guard lock(mutex_);
  ++refused_[static_cast<size_t>(reason)];
}

Status Inbox::Refuse(RefusalReason reason, Status status) {
  ++refused_[static_cast<size_t>(reason)];
  return status;
}

// Whether a request of `client` may join the queue. REQUIRES: mutex_ is held.
Status Inbox::CheckRoom(uint64_t client, int64_t tokens, TimePoint start_by) {
  if (draining_ || stop_)
    return Refuse(RefusalReason::kDraining, Status(StatusCode::kUnavailable, kShuttingDown));
  if (failed_) {
    return Refuse(RefusalReason::kDraining,
                  Status(StatusCode::kUnavailable, "the engine has stopped after a failure"));
  }
  const ClientShare own = queue_.Find(client);
  const ClientShare all = queue_.Sum();
  if (own.ahead() >= kClientToOthersRatioMax * (options_.max_waiting_requests - all.ahead())) {
    return Refuse(RefusalReason::kQueueFull,
                  TooManyWait(own.ahead(), all.ahead(), "requests", options_.max_waiting_requests));
  }
  const int64_t tokens_left = options_.max_waiting_tokens - all.tokens;
  if (all.requests > 0 &&
      (tokens > tokens_left || own.tokens >= kClientToOthersRatioMax * tokens_left)) {
    return Refuse(RefusalReason::kTokensFull, TooManyWait(own.tokens, all.tokens, "prompt tokens",
                                                          options_.max_waiting_tokens));
  }
  if (start_by == TimePoint::max()) return Status();
  const double wait = EstimatedWait(queue_, client);
  const double allowed = SecondsBetween(now_(), start_by);
  if (wait <= allowed) return Status();
  return Refuse(
      RefusalReason::kQueueWait,
      Status(StatusCode::kResourceExhausted,
             "the request would wait about " + SecondsText(wait) + " for its turn and may wait " +
                 SecondsText(std::max(0.0, allowed)) + "; retry later")
          .WithRetryAfter(WholeSeconds(wait - allowed)));
}

Result<std::shared_ptr<QueuePlace>> Inbox::Announce(uint64_t client, TimePoint start_by) {
  std::lock_guard lock(mutex_);
  DS_RETURN_IF_ERROR(CheckRoom(client, 0, start_by));
  ++announced_[client];
  ++queue_.Of(client).announced;
  return std::make_shared<QueuePlace>([this, client] {
    std::lock_guard lock(mutex_);
    LeavePlace(client);
  });
}

// REQUIRES: mutex_ is held, and the client has announced a request.
void Inbox::LeavePlace(uint64_t client) {
  const auto announced = announced_.find(client);
  queue_.Of(client).announced = --announced->second;
  if (announced->second == 0) announced_.erase(announced);
}

Status Inbox::RefuseOverdue(const Request& request, TimePoint now) {
  std::lock_guard lock(mutex_);
  const double wait = EstimatedWait(queue_, request.client);
  const double allowed = SecondsBetween(request.arrival, request.start_by);
  return Refuse(RefusalReason::kQueueWait,
                Status(StatusCode::kResourceExhausted,
                       "the request waited " + SecondsText(SecondsBetween(request.arrival, now)) +
                           " for its turn and might wait " + SecondsText(allowed) + "; retry later")
                    .WithRetryAfter(WholeSeconds(wait - allowed)));
}

Status Inbox::Submit(Request request) {
  const Status fits = CheckFits(options_, request);
  const auto tokens = static_cast<int64_t>(request.prompt.size());
  if (request.arrival == TimePoint()) request.arrival = now_();
  const std::shared_ptr<QueuePlace> place = std::move(request.place);
  {
    std::lock_guard lock(mutex_);
    if (place != nullptr) {
      place->Take();
      LeavePlace(request.client);
    }
    if (!fits.ok() && !draining_ && !stop_ && !failed_)
      return Refuse(RefusalReason::kTooLong, fits);
    DS_RETURN_IF_ERROR(CheckRoom(request.client, tokens, request.start_by));
    const bool is_new = live_.emplace(request.id, false).second;
    DS_CHECK(is_new, "a request id is used once");
    Count(request, queue_);
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

void Inbox::ResetPrefixCache(CacheReset which) {
  {
    std::lock_guard lock(mutex_);
    cache_reset_.memory |= which.memory;
    cache_reset_.second_tier |= which.second_tier;
  }
  wake_.notify_one();
}

void Inbox::Wake() {
  {
    std::lock_guard lock(mutex_);
    woken_ = true;
  }
  wake_.notify_one();
}

bool Inbox::AwaitWake(TimePoint deadline) {
  std::unique_lock lock(mutex_);
  wake_.wait_until(lock, deadline, [&] { return woken_; });
  return std::exchange(woken_, false);
}

void Inbox::Stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
}

Inbox::Incoming Inbox::Take(bool wait, std::optional<TimePoint> deadline) {
  std::unique_lock lock(mutex_);
  const auto has_any = [&] {
    return stop_ || failed_ || end_all_ || cache_reset_.any() || woken_ || !requests_.empty() ||
           !cancels_.empty();
  };
  if (wait && deadline) {
    if (now_() < *deadline) wake_.wait_until(lock, *deadline, has_any);
  } else if (wait) {
    wake_.wait(lock, has_any);
  }
  woken_ = false;
  Incoming incoming;
  incoming.cache_reset = std::exchange(cache_reset_, {});
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

void Inbox::SetQueue(QueueState queue) {
  std::lock_guard lock(mutex_);
  if (failed_) return;
  queue_ = std::move(queue);
  for (const Request& request : requests_) Count(request, queue_);
  for (const auto& [client, number] : announced_) queue_.Of(client).announced = number;
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
    queue_ = {};
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
  const ClientShare all = queue_.Sum();
  stats.waiting = all.requests;
  stats.waiting_tokens = all.tokens;
  stats.refused = refused_;
  stats.draining = draining_;
  stats.failed = failed_;
}

}  // namespace diffserve
