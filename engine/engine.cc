// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/device_error.h"
#include "engine/engine_loop.h"
#include "engine/inbox.h"
#include "kernels/process/log.h"
#include "kernels/process/random_bits.h"
#include "kernels/process/thread_registry.h"

namespace diffserve {

namespace {

// How long the end of the engine waits for pages to be kept in the second tier.
constexpr std::chrono::seconds kKeepingMax{10};

}  // namespace

struct Engine::Impl {
  Impl(EngineOptions engine_options, std::unique_ptr<Executor> executor, EventSink sink,
       KvEventSink on_kv_events, std::unique_ptr<PageTier> page_tier)
      : options(engine_options),
        on_event(std::move(sink)),
        inbox(options),
        tier(std::move(page_tier)),
        loop(options, std::move(executor), inbox,
             {.now = [] { return std::chrono::steady_clock::now(); },
              .hash_key = RandomBits(),  // so that no client can prepare collisions
              .deliver = [this](TokenEvent event) { Deliver(std::move(event)); },
              .publish = [this](const EngineStats& stats) { Publish(stats); },
              .kv_events = std::move(on_kv_events),
              .tier = tier.get()}),
        thread([this] { Run(); }) {}

  ~Impl() {
    inbox.Stop();
    thread.join();
  }

  void Run() {
    const NamedThread named("engine", "a turn");
    Status reason;
    try {
      while (loop.Turn()) {
      }
      loop.KeepOffers(std::chrono::steady_clock::now() + kKeepingMax);
      return;
    } catch (const DeviceError& error) {
      reason = error.status();
    } catch (const std::exception& exception) {
      reason = Status(StatusCode::kInternal, exception.what());
    } catch (...) {
      reason = Status(StatusCode::kInternal, "unknown exception");
    }
    if (reason.code() == StatusCode::kDeviceLost)
      Log(LogLevel::kError, "gpu_lost", {{"reason", reason.message()}});
    else
      Log(LogLevel::kError, "engine_failed", {{"reason", reason.message()}});
    {
      std::lock_guard lock(stats_mutex);
      failure = std::move(reason);
    }
    Fail("the engine has stopped after a failure");
  }

  // Delivers the events of live requests. A request that Fail has ended gets no more events.
  void Deliver(TokenEvent event) {
    std::lock_guard lock(delivery_mutex);
    const RequestId request = event.request;
    const bool terminal = event.finish != FinishReason::kNone;
    if (!inbox.IsLive(request)) return;
    const ScopedThreadActivity at("the outbox");
    on_event(std::move(event));
    if (terminal) inbox.Finish(request);
  }

  void Fail(const std::string& message) {
    std::lock_guard lock(delivery_mutex);
    const std::vector<RequestId> ended = inbox.Fail();
    {
      std::lock_guard stats_lock(stats_mutex);
      published.finished[static_cast<size_t>(FinishReason::kError)] += ended.size();
      published.running = 0;
    }
    for (RequestId request : ended) {
      TokenEvent event;
      event.request = request;
      event.finish = FinishReason::kError;
      event.error = Status(StatusCode::kUnavailable, message);
      on_event(std::move(event));
      inbox.Finish(request);
    }
  }

  // After Fail the engine thread may still be in a step; its statistics are then out of date.
  void Publish(const EngineStats& stats) {
    std::lock_guard lock(stats_mutex);
    if (!inbox.failed()) published = stats;
  }

  const EngineOptions options;
  const EventSink on_event;
  std::mutex delivery_mutex;  // held while on_event runs; lock order: this, stats_mutex, the
                              // inbox's mutex
  std::mutex stats_mutex;
  EngineStats published;
  Status failure;
  Inbox inbox;
  std::unique_ptr<PageTier> tier;
  EngineLoop loop;
  std::thread thread;  // declared last: it uses all members above
};

Engine::Engine(EngineOptions options, std::unique_ptr<Executor> executor, EventSink on_event,
               KvEventSink on_kv_events, std::unique_ptr<PageTier> tier)
    : impl_(std::make_unique<Impl>(options, std::move(executor), std::move(on_event),
                                   std::move(on_kv_events), std::move(tier))) {}

Engine::~Engine() = default;

Status Engine::Submit(Request request) { return impl_->inbox.Submit(std::move(request)); }

Result<std::shared_ptr<QueuePlace>> Engine::Announce(uint64_t client, TimePoint start_by) {
  return impl_->inbox.Announce(client, start_by);
}

void Engine::Cancel(RequestId request, FinishReason as) { impl_->inbox.Cancel(request, as); }

void Engine::ResetPrefixCache(CacheReset which) { impl_->inbox.ResetPrefixCache(which); }

void Engine::Drain(std::chrono::steady_clock::time_point deadline) { impl_->inbox.Drain(deadline); }

void Engine::Fail(const std::string& message) { impl_->Fail(message); }

Status Engine::failure() const {
  std::lock_guard lock(impl_->stats_mutex);
  return impl_->failure;
}

void Engine::CountRefusal(RefusalReason reason) { impl_->inbox.CountRefusal(reason); }

EngineStats Engine::Snapshot() const {
  EngineStats stats;
  {
    std::lock_guard lock(impl_->stats_mutex);
    stats = impl_->published;
    impl_->inbox.Describe(stats);
  }
  if (impl_->tier != nullptr) stats.tier = impl_->tier->stats();
  stats.seconds_since_progress = stats.failed ? 0.0 : impl_->loop.seconds_since_progress();
  return stats;
}

const EngineOptions& Engine::options() const { return impl_->options; }

}  // namespace diffserve
