// Scheduler: decides what each step computes, and which pages hold it. It handles numbers only (no
// tensor, device, clock or thread) and is deterministic: the same calls give the same plans. Owned
// by the engine loop; plans are committed in their order.
//
// Policy. Sequences start by priority, those of one client and priority in order of arrival
// (waiting_line.h says how priorities age and clients take turns); a priority has no say in what
// runs. The one that has run longest is the oldest. Each running sequence with one token left
// computes it; what a step can compute beyond that goes to prompts, oldest first, except that a
// prompt longer than half of it takes no more than half while others want some, so that a short
// prompt need not wait for a long one before it. When no page is left, a running sequence is
// preempted: it gives up its pages and computes its tokens again later. It is the youngest of the
// client that holds the most pages. The oldest of all never is, and as admission proved that each
// request fits into the pool alone, it always advances.
//
// Between clients. Where several have something to compute, the one that wants the least gets it,
// and each other one no more tokens than that and those that take as long as the overhead of a
// step: so a step lasts at most as many times what it would for the first alone as there are
// clients. Their sequences take turns then. A client that has no room to start although it holds
// less than its part of pages and sequences gets room from one that holds more than its own.
//
// Planning ahead. Step t + 1 may be planned while step t is under way (not committed), if the
// executor runs steps in order. A plan advances its sequences at once (num_computed); what they
// will draw counts as a token, kDrawnByStepBefore, until Commit tells it. A sequence whose draw
// under way is its last by count is not planned again. One that turns out at Commit to have ended
// may be in step t + 1 already: that result is dropped, and the one token was
// computed in vain. Why no page is
// in two hands:
// - Only committed slots enter the prefix index, and steps write only behind them. So a page that a
//   step under way writes, even for a sequence that has ended, is not indexed and is shared with
//   nobody.
// - A page given up while a step under way reads or writes it (its sequence has ended; its content
//   was indexed twice) is given out by a later plan, which the device runs later; and a sequence
//   reads only slots that it has written itself or that were committed before it found them in the
//   index.
// - Nobody is preempted while a step is under way, so whatever waits has known tokens and no result
//   to come.
#pragma once

#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/options.h"
#include "engine/page_pool.h"
#include "engine/prefix_index.h"
#include "engine/sequence.h"
#include "engine/state_store.h"
#include "engine/stats.h"
#include "engine/step_plan.h"
#include "engine/waiting_line.h"

namespace diffserve {

// Whether a request could ever be served; the Status names found, allowed and the field. Thread
// safety: reads its arguments only.
Status CheckFits(const EngineOptions& options, const Request& request);

struct SchedulerCounters {
  uint64_t prefix_queries = 0, prefix_hits = 0;  // tokens, at first admission
  std::array<uint64_t, static_cast<size_t>(MissReason::kCount)> prefix_misses{};
  uint64_t preemptions = 0;
  uint64_t corrupted = 0;
  uint64_t proposals = 0, proposed_tokens = 0, accepted_tokens = 0;
  uint64_t deferrals = 0;  // steps in which the head of the line waited for a prefix that another
                           // sequence was computing
};

class Scheduler {
 public:
  explicit Scheduler(const EngineOptions& options, PrefixIndex::Options index_options = {});

  // REQUIRES: CheckFits(options, request).ok(), an id never used before.
  void Add(Request request);
  // Ends the request and frees its pages now; results under way are dropped. The event is its
  // terminal one; nullopt: the id is unknown.
  std::optional<TokenEvent> End(RequestId id, FinishReason finish, Status error);
  // As Engine has it.
  void ResetPrefixCache() { ForgetPages(index_.Clear()); }
  bool HasWork() const { return !running_.empty() || line_.num_waiting() > 0; }
  int max_step_tokens() const { return options_.max_num_batched_tokens; }
  // Tokens that take as long as a step's overhead; before it is known, clients share no step out.
  void SetOverheadTokens(int tokens) { overhead_tokens_ = tokens; }

  // REQUIRES: HasWork(), at most one plan is not committed. Nothing is planned (and nothing to be
  // committed) only if that one must be committed first: all sequences end with it, pages are
  // short, a client is to get room from another, or penalties, a constraint or bad words need a
  // token that it draws.
  StepPlan Plan();
  // Events of the oldest plan not committed, in its order. REQUIRES: there is one, and `result` is
  // that of its step.
  std::vector<TokenEvent> Commit(const StepResult& result);

  // Oldest first. Of one client and priority, what waits arrived after what runs.
  const std::vector<std::unique_ptr<Sequence>>& running() const { return running_; }
  const WaitingLine& line() const { return line_; }
  // Sequences that could start besides the running ones, as far as the last plan knows.
  int free_seats() const;
  const PagePool& pool() const { return pool_; }
  const PrefixIndex& index() const { return index_; }
  const StateStore& states() const { return states_; }
  const SchedulerCounters& counters() const { return counters_; }
  // What entered and left the prefix index since the last call, if its options say that this is
  // recorded.
  std::vector<KvEvent> TakeKvEvents() { return index_.TakeEvents(); }
  // Every invariant between pool, index and sequences; linear in pages and sequences.
  void CheckInvariants() const;

 private:
  static constexpr int kUnlimited = std::numeric_limits<int>::max();
  struct Budget;
  // What Commit must know of a planned sequence, which may have ended since.
  struct Due {
    RequestId request = 0;
    int end = 0;  // of the planned tokens
    int samples = 0;
  };
  // Plan.
  bool MustCommitFirst() const;
  bool MakeRoom();
  Sequence* PickVictim(const Client& next, int64_t pages, int sequences) const;
  void ShareOut();
  void ShareOut(Client& client, int tokens);
  void LiftShares();
  void TakeTurns();
  bool NothingIsPlanned() const;
  Budget NewBudget() const;
  void CheckClients() const;
  bool PlanRunning(Budget& budget);
  void PlanWaiting(Budget& budget);
  void PlanLeftover(Budget& budget);
  void PlanProposals();
  int TokensFor(int remaining, const Budget& budget) const;
  Sequence& Admit(const std::vector<int32_t>& hits);
  Sequence* VictimBehind(size_t index) const;
  void Preempt(Sequence& victim);
  void TakeBackPlan();
  PlannedSequence Describe(Sequence& sequence);
  // Pages.
  int PlanTokens(Sequence& sequence, int tokens);  // as many of them as there are pages for;
                                                   // returns how many
  int64_t PagesMissing(const Sequence& sequence, int tokens) const;
  int64_t MaxPages(const Sequence& sequence) const;  // that it can ever hold
  void TrimPages(Sequence& sequence);
  void ReleasePages(Sequence& sequence);
  bool HasRoomFor(const Sequence& head, const std::vector<int32_t>& hits) const;
  // Prefix cache.
  bool TakesFromCache(const Sequence& sequence) const;
  bool IsKnown(const Sequence& sequence, int page) const;  // all tokens of the full page are known
  PrefixIndex::Key KeyOf(Sequence& sequence, int page, int32_t parent) const;
  std::vector<int32_t> FindPrefix(Sequence& sequence) const;
  bool PrefixIsUnderWay(Sequence& head, int num_hits, int tokens) const;
  void CountPrefix(Sequence& sequence, int num_hits);
  void IndexFullPages(Sequence& sequence);
  void ForgetContent(Sequence& sequence);
  void ForgetPages(const std::vector<int32_t>& pages);
  // Commit.
  TokenEvent CommitSequence(Sequence& sequence, const Due& due, const SequenceResult& result);
  void TakePromptScores(Sequence& sequence, int end, const SequenceResult& result,
                        TokenEvent& event) const;
  int TakeDraws(Sequence& sequence, const Due& due, const std::vector<SampleResult>& samples,
                TokenEvent& event);
  void TakeToken(Sequence& sequence, int position, const SampleResult& sample,
                 TokenEvent& event) const;
  void Remove(const Sequence& sequence);

  const EngineOptions options_;
  const int max_running_;
  PagePool pool_;
  PrefixIndex index_;
  StateStore states_;
  std::vector<std::unique_ptr<Sequence>> running_;  // in the order in which they started
  WaitingLine line_;
  bool short_of_pages_ = false;  // the last plan left the next one waiting for pages
  bool shared_out_ = false;      // the plan under construction gives clients their shares
  std::optional<int> overhead_tokens_;
  uint64_t arrivals_ = 0;
  std::unordered_map<RequestId, Sequence*> by_id_;
  std::deque<std::vector<Due>> due_;  // of the plans not committed yet, oldest first
  uint64_t step_ = 0;
  SchedulerCounters counters_;
};

}  // namespace diffserve
