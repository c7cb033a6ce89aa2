// Engine: one thread that owns Scheduler, PagePool, PrefixIndex and Sequences and loops Plan ->
// Launch -> Collect -> Commit (engine_loop.cc). Requests come in by a bounded inbox, events leave
// by a callback that must not block for long.
//
// Thread safety: all but construction and destruction may be called from any thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/executor.h"
#include "engine/kv_event.h"
#include "engine/options.h"
#include "engine/request.h"
#include "engine/stats.h"

namespace diffserve {

class Engine {
 public:
  // `on_event` is called on the engine thread for every event of every request (and on the caller's
  // by Fail), one call at a time; the output loop puts them into its outbox. It may wait, as Submit
  // and Cancel never do for it, but must not call back into the engine itself.
  using EventSink = std::function<void(TokenEvent)>;
  // Likewise called on the engine thread, with what entered and left the prefix index; it must not
  // block at all.
  using KvEventSink = std::function<void(std::vector<KvEvent>)>;
  Engine(EngineOptions options, std::unique_ptr<Executor> executor, EventSink on_event,
         KvEventSink on_kv_events = nullptr);
  ~Engine();  // cancels what is left, then joins
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Admission: kInvalidArgument if the request can never fit (prompt + max_tokens against
  // max_model_len, and its pages against the whole pool), kResourceExhausted if too much waits
  // already or if it would not start in time, kUnavailable while draining. Once ok, exactly one
  // terminal event follows. Never blocks.
  Status Submit(Request request);
  // What Submit would say of the line alone, for those who can then spare the work before it.
  Status CheckLine(uint64_t client, TimePoint start_by);
  // Idempotent; unknown and finished ids are ignored. The pages are free for the next step. `as` is
  // what the terminal event and the statistics say: kCancelled, or kStop where the client has its
  // whole answer (a stop string matched).
  void Cancel(RequestId request, FinishReason as = FinishReason::kCancelled);
  // What is submitted from now on finds nothing in the prefix cache that was put there before.
  // Running requests keep their pages, and what they complete may enter the cache.
  void ResetPrefixCache();
  // Refuses new work; returns when nothing runs or waits, or when `deadline` has passed: what is
  // left then ends with a kUnavailable error event.
  void Drain(std::chrono::steady_clock::time_point deadline);

  // For a watchdog that sees no progress (Snapshot().seconds_since_progress), and when the executor
  // throws: every request gets a kUnavailable error event with `message` at once, later ones are
  // refused, Snapshot says `failed`. There is no way back.
  void Fail(const std::string& message);

  // Counts a request that its front end refused before Submit, so that one counter tells all
  // refusals.
  void CountRefusal(RefusalReason reason);

  EngineStats Snapshot() const;  // counters and gauges (stats.h), consistent at a step's end
  const EngineOptions& options() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace diffserve
