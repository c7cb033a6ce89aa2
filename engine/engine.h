// SPDX-License-Identifier: Apache-2.0
// Engine: one thread that owns Scheduler, PagePool, PrefixIndex and Sequences and loops Plan ->
// Launch -> Collect -> Commit (engine_loop.cc). Requests enter through a bounded inbox. Events
// leave through a callback that must not block for long.
//
// Thread safety: every method except constructor and destructor may be called from any thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/contract/kv_event.h"
#include "engine/contract/options.h"
#include "engine/contract/page_tier.h"
#include "engine/contract/request.h"
#include "engine/contract/stats.h"
#include "engine/executor.h"

namespace diffserve {

class Engine {
 public:
  // `on_event` is called on the engine thread for every event of every request, and by Fail on the
  // caller's thread; one call at a time. The output loop's sink puts the events into its outbox. It
  // may wait, because Submit and Cancel never wait for it, but it must not call back into the
  // engine.
  using EventSink = std::function<void(TokenEvent)>;
  // Called on the engine thread with the changes of the prefix index; it must not block at all.
  using KvEventSink = std::function<void(std::vector<KvEvent>)>;
  // `tier`: a second place for pages of the prefix cache, or nullptr.
  Engine(EngineOptions options, std::unique_ptr<Executor> executor, EventSink on_event,
         KvEventSink on_kv_events = nullptr, std::unique_ptr<PageTier> tier = nullptr);
  ~Engine();  // cancels all remaining requests, then joins
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Admission. kInvalidArgument: the request can never fit (prompt + max_tokens exceed
  // max_model_len, or its pages exceed the whole pool). kResourceExhausted: too much is queued
  // already, or the request would not start in time. kUnavailable: the engine is draining. After
  // ok, exactly one terminal event follows. Never blocks.
  Status Submit(Request request);
  // Checks the queue limits of Submit before the text work of a request, and keeps its place in the
  // queue. The place is for Request::place and must not outlive the engine.
  Result<std::shared_ptr<QueuePlace>> Announce(uint64_t client, TimePoint start_by);
  // Idempotent; unknown and finished ids are ignored. The pages are free for the next step. `as` is
  // the finish reason of the terminal event and the statistics: kCancelled, or kStop if the client
  // already has its whole answer (a stop string matched).
  void Cancel(RequestId request, FinishReason as = FinishReason::kCancelled);
  // Requests submitted after this find no page that was in these tiers of the prefix cache. Running
  // requests keep their pages, and pages that they complete later may enter the cache.
  void ResetPrefixCache(CacheReset which);
  // Refuses new work and waits until nothing runs or waits, or until `deadline`. Requests left at
  // the deadline end with a kUnavailable error event.
  void Drain(std::chrono::steady_clock::time_point deadline);

  // Ends every request at once with a kUnavailable error event that carries `message`, and refuses
  // later ones; Snapshot() reports `failed`. Irreversible. Called by a watchdog that sees no
  // progress (Snapshot().seconds_since_progress), and by the engine when the executor throws.
  void Fail(const std::string& message);

  // What the executor threw, kDeviceLost if its device cannot be used any more. OK if it did not.
  Status failure() const;

  // Counts a request that a front end refused before Submit, so that one counter covers all
  // refusals.
  void CountRefusal(RefusalReason reason);

  EngineStats Snapshot() const;  // counters and gauges (stats.h), consistent at a step's end
  const EngineOptions& options() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace diffserve
