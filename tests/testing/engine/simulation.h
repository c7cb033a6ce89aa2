// SPDX-License-Identifier: Apache-2.0
// Simulation: the real EngineLoop, with its Inbox and Scheduler, over a FakeExecutor, without
// threads or clock. A seed decides everything: engine sizes, arrivals, cancellations, how clients
// read, faults, and whether it drains or its device fails at the end. The fourteen invariants below
// are checked after each plan and each turn. Run returns the first violation as text, or "".
//
//  1. free + in use + cached = all pages
//  2. holders of a page = sequences that list it
//  3. a sequence that has ended holds no page
//  4. a shared page is never written
//  5. page table length = ceil(tokens / size)
//  6. tokens, sequences and pages within limits
//  7. the oldest running sequence advances in every step, or its client's others take turns
//  8. it is never preempted, preemptions are bounded, a request that fits is admitted
//  9. more urgent requests start first; for one client and level, earlier arrivals
// 10. a prefix hit has the same salt and the same tokens, and is the longest
// 11. exactly one terminal event for each request, nothing after it
// 12. the output of a sequence = its output when it runs by itself
// 13. a follower of the KV events knows the pages of the prefix index
// 14. states and window pages hold their sequence's tokens and have the right holders
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_loop.h"
#include "tests/testing/engine/engine_requests.h"
#include "tests/testing/engine/fake_tier.h"
#include "tests/testing/engine/followed_request.h"
#include "tests/testing/engine/kv_event_follower.h"
#include "tests/testing/engine/plan_checks.h"
#include "tests/testing/engine/simulated_readers.h"
#include "tests/testing/engine/simulated_requests.h"
#include "tests/testing/engine/simulation_counts.h"
#include "tests/testing/engine/start_order.h"
#include "tests/testing/engine/watched_executor.h"

namespace diffserve::testing {

class Simulation {
 public:
  using Outcome = FollowedRequest::Outcome;  // it does not depend on depth and speculative tokens
  using Counts = SimulationCounts;

  struct Kind {
    int depth = 1;  // Executor::depth(); above 1 only without speculative_tokens
    int speculative_tokens = 0;
    bool has_states = false;  // the model's layers keep states and see windows
    bool has_tier = false;    // a second tier of the prefix cache
    bool has_draft = false;   // a draft model; only with speculative_tokens
  };
  // Request number i is the same for each kind.
  Simulation(uint64_t seed, const Kind& kind);

  // Runs `arriving_turns` turns with arrivals, then as many as finish what is left.
  std::string Run(int arriving_turns);

  const EngineOptions& options() const { return options_; }
  const EngineStats& stats() const { return stats_; }
  const SchedulerCounters& counters() const { return scheduler().counters(); }
  const ProposalPlanner::Counters& proposals() const { return scheduler().proposals().counters(); }
  const TierTransfers::Counters& transfers() const { return scheduler().transfers().counters(); }
  const StateStore::Counters& snapshots() const { return scheduler().states().counters(); }
  const Counts& counts() const { return counts_; }
  const StartOrder& start_order() const { return start_order_; }
  const FakeTier::Counts& tier() const { return tier_.counts(); }
  uint64_t kv_events() const { return follower_.num_events(); }
  const SimulatedReaders::Counts& readers() const { return readers_.counts(); }
  const std::map<RequestId, Outcome>& outcomes() const { return outcomes_; }

 private:
  // --- Random choices ---
  EngineLoop::World RandomWorld();
  // Plans are checked before the executor gets them.
  std::unique_ptr<Executor> WatchedExecutor(int depth);
  FakeExecutor::Options Fake(int depth);

  // --- What happens ---
  void Arrive();
  int NumRunningOf(uint64_t client) const;
  int NumWaitingOf(uint64_t client) const;
  void CancelOne();
  void ResetCache();

  // Takes effect with the next turn, unless the request ends in this one.
  void CancelOfReader(RequestId id);

  bool HasWork() const { return !loop_.idle() || !records_.empty(); }

  void Turn();

  // Does what Engine::Fail does when the executor throws.
  void Lose();
  void OnLaunch(const StepPlan& plan);
  void OnCollect();

  // A request that ends normally wastes the token that was planned ahead; a cancelled or broken one
  // wastes what was launched.
  void CountWaste(RequestId id, int num_planned);

  // --- Invariants ---
  void RequireNothing(const std::string& violation);
  bool Require(bool condition, const std::string& what);

  // 4, 5, 6, 7.
  void CheckPlan(const StepPlan& plan);

  // 8 and 9, after Plan.
  void CheckService(const StepPlan& plan);

  // 1, 2, 3 from outside, and the scheduler's own checks.
  void CheckState();

  // 1, as the statistics have it.
  void CheckReportedUse();

  // After the last turn.
  void CheckEmpty();

  // 13.
  void CheckKnownPages();

  // 11 and 12.
  void TakeEvent(const TokenEvent& event);

  // True if it has ended normally.
  bool EndsByItself(const FollowedRequest& record, const TokenEvent& event);

  int live() const { return static_cast<int>(records_.size()); }
  const Scheduler& scheduler() const { return loop_.scheduler(); }
  TimePoint Now() { return TimePoint(std::chrono::microseconds(++ticks_)); }

  const uint64_t seed_;
  const bool has_tier_;
  Dice dice_;  // for what happens between requests
  const EngineOptions options_;
  const RandomRequests requests_;
  int64_t ticks_ = 0;
  EngineStats stats_;
  std::map<RequestId, FollowedRequest> records_;  // live requests
  int busyness_ = 0, overhead_us_ = 0, token_us_ = 0;
  bool drains_ = false;
  uint64_t lost_at_ = 0;  // step
  bool closing_ = false, lost_ = false;
  uint64_t arrivals_ = 0, steps_ = 0;
  int steps_deferred_ = 0, idle_steps_ = 0;
  RequestId last_head_ = 0, last_oldest_ = 0;
  std::set<RequestId> started_, wasters_;
  std::deque<std::vector<PlannedCopy>> launched_;  // not collected yet, oldest first
  std::map<RequestId, Outcome> outcomes_;
  Counts counts_;
  KvEventFollower follower_;
  std::string violation_;
  std::vector<RequestId> cut_;  // requests whose reader asked to end them in this turn
  // State of the current turn:
  std::vector<RequestId> running_before_;
  StartOrder start_order_;
  SchedulerCounters counters_before_;
  bool launched_now_ = false;
  std::set<RequestId> collected_;
  std::vector<std::pair<RequestId, int>> wasted_;  // request, tokens planned
  std::map<RequestId, int32_t> first_pages_;       // request -> its first indexed page before the
                                                   // last commit

  SimulatedReaders readers_;
  FakeExecutor* executor_ = nullptr;  // loop_'s
  FakeTier tier_;
  Inbox inbox_;
  EngineLoop loop_;  // declared last: it uses all members above
};

}  // namespace diffserve::testing
