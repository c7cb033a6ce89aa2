// SPDX-License-Identifier: Apache-2.0
// Scheduler: decides what each step computes and which pages hold it. It handles numbers only (no
// tensor, device, clock or thread) and is deterministic: the same calls give the same plans. Owned
// by the engine loop; plans are committed in order. It owns its four parts and is the only one that
// knows all of them: SequencePages (pages and prefix cache), TierTransfers (the second tier),
// ProposalPlanner (speculation) and ClientShares (fairness between clients).
//
// Policy. Sequences start by priority; those of one client and priority start in order of arrival.
// waiting_queue.h defines how priorities age and clients take turns. Priority does not affect
// running sequences. The oldest is the one that has run longest. Each running sequence with one
// token left computes it. The rest of the step goes to prompts, oldest first. A prompt longer than
// half of that rest gets at most half while other prompts need some, so that a short prompt does
// not wait for a long one. When no page is left, a running sequence is preempted: it releases its
// pages and computes its tokens again later. The victim is the youngest sequence of the client that
// holds the most pages. The oldest of all is never preempted. Admission has proved that each
// request fits into the pool by itself, so the oldest always advances.
//
// Planning ahead. Step t + 1 may be planned while step t is in flight (launched, not committed) if
// the executor runs steps in order. A plan advances its sequences at once (num_computed). A token
// that such a step will draw is recorded as kDrawnByStepBefore until Commit replaces it. A sequence
// whose draw in flight is its last by count is not planned again. If Commit finds that a sequence
// has ended, step t + 1 may already contain it: that result is dropped and one token was computed
// in vain. No sequence is preempted while a step is in flight, so every waiting sequence has known
// tokens and no pending result.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/contract/options.h"
#include "engine/contract/page_tier.h"
#include "engine/policy/client_shares.h"
#include "engine/policy/proposal_planner.h"
#include "engine/policy/sequence.h"
#include "engine/policy/sequence_pages.h"
#include "engine/policy/step_costs.h"
#include "engine/policy/step_plan.h"
#include "engine/policy/tier_transfers.h"
#include "engine/policy/waiting_queue.h"

namespace diffserve {

struct SchedulerCounters {
  uint64_t prefix_queries = 0, prefix_hits = 0;  // tokens, at first admission
  uint64_t tier_hits = 0;                        // of prefix_hits, from the second tier
  std::array<uint64_t, static_cast<size_t>(MissReason::kCount)> prefix_misses{};
  uint64_t preemptions = 0;
  uint64_t corrupted = 0;
  uint64_t constraints_failed = 0;
  uint64_t deferrals = 0;  // steps in which the head of the queue waited for a prefix that another
                           // sequence was computing
};

class Scheduler {
 public:
  // `tier` may be nullptr; it outlives the scheduler.
  explicit Scheduler(const EngineOptions& options, PrefixIndex::Options index_options = {},
                     PageTier* tier = nullptr);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // REQUIRES: CheckFits(options, request).ok(), an id never used before.
  void Add(Request request);
  // Ends the request and frees its pages now; results in flight are dropped. Returns its terminal
  // event, or nullopt if the id is unknown.
  std::optional<TokenEvent> End(RequestId id, FinishReason finish, Status error);
  // See Engine::ResetPrefixCache.
  void ResetPrefixCache(CacheReset which);
  // Takes what the second tier has done, and gives it what it takes now.
  void FinishTransfers();
  // The sequences of loads that are too slow wait again, and are computed.
  void GiveUpSlowLoads(double now);
  int max_step_tokens() const { return options_.max_num_batched_tokens; }
  bool HasWork() const { return !running_.empty() || queue_.num_waiting() > 0; }

  // Plans the next step. The plan is empty (and then must not be committed) only if the plan in
  // flight must be committed first. Reasons: all sequences end with it; pages are short; a client
  // is to get room from another; or penalties, a constraint or bad words need a token that it
  // draws; or transfers hold the pages. REQUIRES: HasWork(); at most one plan is not committed.
  StepPlan Plan(const StepCosts& costs = {});
  // Commits the oldest plan that is not committed and returns its events in plan order. REQUIRES:
  // there is one, and `result` is that step's result.
  std::vector<TokenEvent> Commit(const StepResult& result);

  // Oldest first. For one client and priority, every waiting sequence arrived after every running
  // one.
  const std::vector<std::unique_ptr<Sequence>>& running() const { return running_; }
  const WaitingQueue& queue() const { return queue_; }
  // How many sequences could start in addition to the running ones, as of the last plan.
  int free_seats() const;
  const PagePool& pool() const { return pages_.pool(); }
  const PrefixIndex& index() const { return pages_.index(); }
  const StateStore& states() const { return pages_.states(); }
  const TierTransfers& transfers() const { return transfers_; }
  const ProposalPlanner& proposals() const { return proposals_; }
  const SchedulerCounters& counters() const { return counters_; }
  // Returns the changes of the prefix index since the last call, if its options record them.
  std::vector<KvEvent> TakeKvEvents() { return pages_.TakeKvEvents(); }
  // Checks every invariant between the parts; linear in pages and sequences.
  void CheckInvariants() const;

 private:
  struct Budget;
  // What Commit needs to know about a planned sequence, which may have ended since.
  struct Due {
    RequestId request = 0;
    int end = 0;  // position after the planned tokens
    int samples = 0;
  };
  // Plan.
  bool MustCommitFirst() const;
  bool MakeRoom();
  bool PlanAll(const StepCosts& costs, Budget& budget);
  Budget NewBudget(const StepCosts& costs) const;
  bool PlanRunning(Budget& budget);
  void PlanWaiting(Budget& budget, const StepCosts& costs);
  void PlanLeftover(Budget& budget);
  int TokensFor(int remaining, const Budget& budget) const;
  Sequence& Admit(const std::vector<int32_t>& hits);
  void CountPrefix(Sequence& sequence);
  Sequence* VictimBehind(size_t index) const;
  void Preempt(Sequence& victim);
  void ReleasePages(Sequence& sequence);
  void TakeBackPlan();
  StepPlan DescribePlan();
  PlannedSequence Describe(Sequence& sequence);
  // Commit.
  TokenEvent CommitSequence(Sequence& sequence, const Due& due, const SequenceResult& result);
  void TakeResult(Sequence& sequence, const Due& due, const SequenceResult& result,
                  TokenEvent& event);
  void EndCorrupted(Sequence& sequence, const SequenceResult& result, bool finite,
                    TokenEvent& event);
  void Remove(const Sequence& sequence);
  void Put(TierTransfers::Sequences sequences);

  const EngineOptions options_;
  SequencePages pages_;
  TierTransfers transfers_;
  ProposalPlanner proposals_;
  ClientShares shares_;
  std::vector<std::unique_ptr<Sequence>> running_;  // in order of start
  WaitingQueue queue_;
  bool short_of_pages_ = false;  // after the last plan, the next sequence still waits for pages
  uint64_t arrivals_ = 0;
  std::unordered_map<RequestId, Sequence*> by_id_;
  std::deque<std::vector<Due>> due_;  // one entry per plan that is not committed, oldest first
  uint64_t step_ = 0;
  SchedulerCounters counters_;
};

}  // namespace diffserve
