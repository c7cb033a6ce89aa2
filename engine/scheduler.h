// Scheduler: decides what each step computes, and which pages hold it. It handles numbers only (no
// tensor, device, clock or thread) and is deterministic: the same calls give the same plans. Owned
// by the engine loop; plans are committed in their order.
//
// Policy. Sequences stand in one line by order of arrival; the running ones are its front, the
// waiting ones the rest. Each running sequence with one token left computes it; what a step can
// compute beyond that goes to prompts in order of arrival, except that a prompt longer than half of
// it takes no more than half while others want some, so that a short prompt need not wait for a
// long one before it. When no page is left, the youngest running sequence is preempted: it gives up
// its pages and computes its tokens again later. The oldest running one never is, and as admission
// proved that each request fits into the pool alone, it always advances.
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
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/options.h"
#include "engine/page_pool.h"
#include "engine/prefix_index.h"
#include "engine/sequence.h"
#include "engine/stats.h"
#include "engine/step_plan.h"

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
  bool HasWork() const { return !running_.empty() || !waiting_.empty(); }

  // REQUIRES: HasWork(), at most one plan is not committed. Nothing is planned (and nothing to be
  // committed) only if that one must be committed first: all sequences end with it, pages are
  // short, or penalties count a token that it draws.
  StepPlan Plan();
  // Events of the oldest plan not committed, in its order. REQUIRES: there is one, and `result` is
  // that of its step.
  std::vector<TokenEvent> Commit(const StepResult& result);

  // Oldest first; every waiting sequence arrived after every running one.
  const std::vector<std::unique_ptr<Sequence>>& running() const { return running_; }
  const std::deque<std::unique_ptr<Sequence>>& waiting() const { return waiting_; }
  int64_t waiting_tokens() const { return waiting_tokens_; }
  const PagePool& pool() const { return pool_; }
  const PrefixIndex& index() const { return index_; }
  const SchedulerCounters& counters() const { return counters_; }
  // What entered and left the prefix index since the last call, if its options say that this is
  // recorded.
  std::vector<KvEvent> TakeKvEvents() { return index_.TakeEvents(); }
  // Every invariant between pool, index and sequences; linear in pages and sequences.
  void CheckInvariants() const;

 private:
  struct Budget;
  // What Commit must know of a planned sequence, which may have ended since.
  struct Due {
    RequestId request = 0;
    int end = 0;  // of the planned tokens
    int samples = 0;
  };
  // Plan.
  bool MustCommitFirst() const;
  bool PlanRunning(Budget& budget);
  void PlanWaiting(Budget& budget);
  void PlanLeftover(Budget& budget);
  void PlanProposals();
  int TokensFor(int remaining, const Budget& budget) const;
  void Admit(const std::vector<int32_t>& hits);
  void Preempt(Budget& budget);
  void TakeBackPlan();
  PlannedSequence Describe(Sequence& sequence) const;
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
  std::vector<std::unique_ptr<Sequence>> running_;  // by arrival, oldest first
  std::deque<std::unique_ptr<Sequence>> waiting_;   // by arrival, all after the running ones
  int64_t waiting_tokens_ = 0;
  std::unordered_map<RequestId, Sequence*> by_id_;
  std::deque<std::vector<Due>> due_;  // of the plans not committed yet, oldest first
  uint64_t step_ = 0;
  SchedulerCounters counters_;
};

}  // namespace diffserve
