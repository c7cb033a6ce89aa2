// SPDX-License-Identifier: Apache-2.0
// Scheduler: decides what each step computes and which pages hold it. It handles numbers only (no
// tensor, device, clock or thread) and is deterministic: the same calls give the same plans. Owned
// by the engine loop; plans are committed in order.
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
// Between clients. When several clients have something to compute, the one that needs the fewest
// tokens gets them all. Each other client gets at most that number plus the tokens that take as
// long as a step's overhead. A step of N clients therefore lasts at most N times as long as one for
// the first client only. The sequences of a limited client take turns. A client that cannot start a
// sequence although it holds less than its equal part of pages and sequences gets room from a
// client that holds more than its part.
//
// Planning ahead. Step t + 1 may be planned while step t is in flight (launched, not committed) if
// the executor runs steps in order. A plan advances its sequences at once (num_computed). A token
// that such a step will draw is recorded as kDrawnByStepBefore until Commit replaces it. A sequence
// whose draw in flight is its last by count is not planned again. If Commit finds that a sequence
// has ended, step t + 1 may already contain it: that result is dropped and one token was computed
// in vain. Two sequences never use one page for different content, because:
// - Only committed slots enter the prefix index, and steps write only after them. So a page that a
//   step in flight writes, even for a sequence that has ended, is neither indexed nor shared.
// - A page may be released while a step in flight reads or writes it (its sequence has ended, or
//   its content was indexed twice). Only a later plan can reuse it, and the device runs that plan
//   later. A sequence reads only slots that it has written itself or that were committed before it
//   found them in the index.
// - No sequence is preempted while a step is in flight, so every waiting sequence has known tokens
//   and no pending result.
#pragma once

#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/answer_history.h"
#include "engine/draft_pages.h"
#include "engine/options.h"
#include "engine/page_pool.h"
#include "engine/page_tier.h"
#include "engine/prefix_index.h"
#include "engine/row_cost.h"
#include "engine/sequence.h"
#include "engine/state_store.h"
#include "engine/stats.h"
#include "engine/step_plan.h"
#include "engine/waiting_queue.h"

namespace diffserve {

// Whether a request could ever be served. An error names the field, its value and the limit. Thread
// safety: reads its arguments only.
Status CheckFits(const EngineOptions& options, const Request& request);

struct SchedulerCounters {
  uint64_t prefix_queries = 0, prefix_hits = 0;  // tokens, at first admission
  std::array<uint64_t, static_cast<size_t>(MissReason::kCount)> prefix_misses{};
  uint64_t preemptions = 0;
  uint64_t corrupted = 0;
  uint64_t constraints_failed = 0;
  uint64_t proposals = 0;
  GuessCounts proposed_tokens, accepted_tokens;
  uint64_t deferrals = 0;  // steps in which the head of the queue waited for a prefix that another
                           // sequence was computing
  uint64_t tier_hits = 0;  // of prefix_hits, from the second tier
  uint64_t tokens_loaded = 0;  // that loads from the second tier have made usable
  uint64_t pages_kept = 0;     // in it
  uint64_t pages_lost = 0;     // that left the cache before the tier could keep them
  uint64_t slow_loads = 0;     // given up
};

class Scheduler {
 public:
  // `tier` may be nullptr; it outlives the scheduler.
  explicit Scheduler(const EngineOptions& options, PrefixIndex::Options index_options = {},
                     PageTier* tier = nullptr);

  // REQUIRES: CheckFits(options, request).ok(), an id never used before.
  void Add(Request request);
  // Ends the request and frees its pages now; results in flight are dropped. Returns its terminal
  // event, or nullopt if the id is unknown.
  std::optional<TokenEvent> End(RequestId id, FinishReason finish, Status error);
  // See Engine::ResetPrefixCache.
  void ResetPrefixCache(CacheReset which);
  // Takes what the second tier has done, and gives it what it takes now.
  void FinishTransfers();
  // Whether pages that have left their sequences still wait to be kept.
  bool HasOffers() const { return !offered_.empty(); }
  int64_t num_transferring() const { return num_transferring_; }  // pages that transfers hold
  int num_loads() const { return static_cast<int>(loads_.size()); }
  // Sets the time of the next plan in seconds, and what a token of a step takes; 0: not known yet.
  // A load that the plan starts may take as long as its tokens would.
  void SetTime(double now, double token_seconds);
  // When the next load is too slow; nullopt: none is under way.
  std::optional<double> NextLoadDeadline() const;
  // The sequences of loads that are too slow wait again, and are computed. Nothing more is loaded
  // until the tier has let go of their pages.
  void GiveUpSlowLoads(double now);
  // Pages that nothing holds but the second tier, which copies them.
  int NumPagesOnlyKept() const;
  // Requests whose prefix is being loaded; they neither run nor wait in the queue.
  std::vector<RequestId> LoadingRequests() const;
  bool HasWork() const { return !running_.empty() || queue_.num_waiting() > 0; }
  int max_step_tokens() const { return options_.max_num_batched_tokens; }
  // Sets how many tokens take as long as a step's overhead. Until it is known, steps are not
  // divided between clients, and proposals suppose a small one.
  void SetOverheadTokens(int tokens) { overhead_tokens_ = tokens; }
  // Sets what steps of few rows cost, in tokens of a step; nullopt: not known, so their overhead
  // and one token per row.
  void SetRowCosts(const std::optional<RowCosts>& costs) { row_costs_ = costs; }
  // Sets what the draft model's work costs; nullopt: not known, so as much as its size says.
  void SetDraftCost(std::optional<DraftCost> cost) { draft_cost_ = cost; }

  // Plans the next step. The plan is empty (and then must not be committed) only if the plan in
  // flight must be committed first. Reasons: all sequences end with it; pages are short; a client
  // is to get room from another; or penalties, a constraint or bad words need a token that it
  // draws; or transfers hold the pages. REQUIRES: HasWork(); at most one plan is not committed.
  StepPlan Plan();
  // Commits the oldest plan that is not committed and returns its events in plan order. REQUIRES:
  // there is one, and `result` is that step's result.
  std::vector<TokenEvent> Commit(const StepResult& result);

  // Oldest first. For one client and priority, every waiting sequence arrived after every running
  // one.
  const std::vector<std::unique_ptr<Sequence>>& running() const { return running_; }
  const WaitingQueue& queue() const { return queue_; }
  // How many sequences could start in addition to the running ones, as of the last plan.
  int free_seats() const;
  const PagePool& pool() const { return pool_; }
  const PrefixIndex& index() const { return index_; }
  const StateStore& states() const { return states_; }
  int64_t history_bytes() const { return history_ ? history_->bytes() : 0; }
  const SchedulerCounters& counters() const { return counters_; }
  // Returns the changes of the prefix index since the last call, if its options record them.
  std::vector<KvEvent> TakeKvEvents() { return index_.TakeEvents(); }
  // Checks every invariant between pool, index and sequences; linear in pages and sequences.
  void CheckInvariants() const;

 private:
  static constexpr int kUnlimited = std::numeric_limits<int>::max();
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
  Sequence* PickVictim(const ClientQueue& next, int64_t pages, int sequences) const;
  void ShareOut();
  void ShareOut(ClientQueue& client, int tokens);
  void LiftShares();
  void TakeTurns();
  bool NothingIsPlanned() const;
  Budget NewBudget() const;
  void CheckClients() const;
  bool PlanRunning(Budget& budget);
  void PlanWaiting(Budget& budget);
  void PlanLeftover(Budget& budget);
  // Speculation.
  // The tokens that may be proposed for a sequence.
  struct Offer {
    Sequence* sequence = nullptr;
    Guess guess = {};
    double guess_cost = 0;  // of each token before its row is computed, in tokens of a step
    size_t count = 0;       // of the guess's tokens, in the step that is looked at
    size_t best_count = 0;  // the same in the best step; it is what is proposed
    // That the next token is right; 0: there is none.
    double chance() const { return count < guess.chances.size() ? guess.chances[count] : 0; }
  };
  // What a step is expected to give, and what it costs in tokens.
  struct StepValue {
    double tokens = 0, cost = 0;
    double row_cost = 0;  // of each further row, on average up to the most that are verified
    double rate() const { return tokens / cost; }
  };
  void ReadTexts(bool of_all);
  void PlanProposals();
  int OverheadTokens() const;
  double CostOfStep(int rows) const;
  double MinRowCost(int rows, int rows_max) const;
  void ChooseCounts(std::vector<Offer>& offers, StepValue step, int rows, int rows_max) const;
  int MaxProposed(const Sequence& sequence, int rows) const;
  Guess GuessFor(Sequence& sequence, int rows, double chance_min);
  void Remember(const Sequence& sequence, FinishReason finish);
  void Propose(Offer& offer);
  void OfferDrafts(std::vector<Offer>& offers, const StepValue& step, int rows);
  Guess DraftGuess(const Sequence& sequence, int rows) const;
  DraftCost CostOfDraft() const;
  int TokensFor(int remaining, const Budget& budget) const;
  Sequence& Admit(const std::vector<int32_t>& hits);
  Sequence* VictimBehind(size_t index) const;
  void Preempt(Sequence& victim);
  void TakeBackPlan();
  PlannedSequence Describe(Sequence& sequence);
  // Pages.
  int PlanTokens(Sequence& sequence, int tokens);  // plans as many of `tokens` as pages allow;
                                                   // returns how many
  int64_t PagesMissing(const Sequence& sequence, int tokens) const;
  int64_t MaxPages(const Sequence& sequence) const;  // that the sequence can ever hold
  int32_t AllocatePage();                            // REQUIRES: one is available
  void TrimPages(Sequence& sequence);
  void ReleasePages(Sequence& sequence);
  bool HasRoomFor(const Sequence& head, const std::vector<int32_t>& hits) const;
  // Prefix cache.
  bool TakesFromCache(const Sequence& sequence) const;
  bool IsKnown(const Sequence& sequence, int page) const;  // whether all tokens of the full page
                                                           // are known
  PrefixIndex::Key KeyOf(Sequence& sequence, int page, int32_t parent) const;
  std::vector<int32_t> IndexedPages(Sequence& sequence) const;
  std::vector<int32_t> FindPrefix(Sequence& sequence) const;
  bool PrefixIsUnderWay(Sequence& head, int num_hits, int tokens) const;
  void CountPrefix(Sequence& sequence, int num_hits);
  void IndexFullPages(Sequence& sequence);
  void ForgetContent(Sequence& sequence);
  void ForgetPages(const std::vector<int32_t>& pages);
  // Second tier.
  // A load in progress.
  struct TierLoad {
    std::unique_ptr<Sequence> sequence = nullptr;  // nullptr: it has ended
    std::vector<int32_t> held = {};  // pages of its prefix: those found in the index, then the new
                                     // ones
    int num_hits = 0;
    std::optional<SnapshotMemory> snapshot = {};  // for the one at the end of the last page
    int begin = 0;                                // tokens that are usable without it
    bool is_stale = false;                        // a reset has forgotten pages of it since
    double deadline = 0;
    bool is_given_up = false;
  };
  // Indexed pages from the first of a chain on, which a sequence has released.
  struct OfferedChain {
    std::vector<TierEntry> pages = {};
    std::vector<uint64_t> serials = {};  // of the index, which tell a page's contents apart
  };
  struct KeptChain {
    std::vector<TierEntry> entries = {};  // pages, each before its snapshot; held
    size_t num_given = 0;                 // leading entries that the tier has, or copies
    size_t num_done = 0;                  // that it has
  };
  static constexpr int64_t kMaxOfferedPages = 4;  // as a multiple of the pool's
  const TierKey& TierKeyOf(Sequence& sequence, int page) const;
  int64_t RoomForTransfers() const;
  bool StartLoad(Sequence& next, int num_hits);
  double LoadSeconds(int64_t tokens) const;
  std::vector<TierEntry> FindInTier(Sequence& next, std::vector<int32_t>& pages, int num_hits);
  void FinishLoad(uint64_t id, int num_loaded);
  bool EndLoading(const Sequence& sequence);
  void OfferPages(Sequence& sequence);
  void DropOffer();
  void StartKeeping();
  size_t NumStillIndexed(const OfferedChain& chain) const;
  std::vector<TierEntry> Hold(std::span<const TierEntry> pages);
  void KeepPages();
  void ReleaseKept(size_t first);
  void StopKeeping();
  void CheckTransfers(std::vector<int>& holders) const;
  std::vector<const SnapshotMemory*> SnapshotsOfTransfers() const;
  // Commit.
  TokenEvent CommitSequence(Sequence& sequence, const Due& due, const SequenceResult& result);
  void TakePromptScores(Sequence& sequence, int end, const SequenceResult& result,
                        TokenEvent& event) const;
  int TakeDraws(Sequence& sequence, const Due& due, const SequenceResult& result,
                TokenEvent& event);
  void Learn(Sequence& sequence, int proposed, int accepted);
  void TakeToken(Sequence& sequence, int position, const SampleResult& sample, TokenEvent& event);
  void EndByConstraint(Status error, TokenEvent& event);
  void Remove(const Sequence& sequence);

  const EngineOptions options_;
  const int max_running_;
  PagePool pool_;
  PrefixIndex index_;
  StateStore states_;
  std::optional<AnswerHistory> history_;
  std::vector<std::unique_ptr<Sequence>> running_;  // in order of start
  WaitingQueue queue_;
  bool short_of_pages_ = false;  // after the last plan, the next sequence still waits for pages
  bool shared_out_ = false;      // the plan being built divides the step between clients
  std::optional<int> overhead_tokens_;
  std::optional<RowCosts> row_costs_;
  std::optional<DraftCost> draft_cost_;
  DraftRecord draft_record_;  // of all sequences
  DraftPages draft_pages_;
  uint64_t arrivals_ = 0;
  std::unordered_map<RequestId, Sequence*> by_id_;
  std::deque<std::vector<Due>> due_;  // one entry per plan that is not committed, oldest first
  uint64_t step_ = 0;
  SchedulerCounters counters_;
  PageTier* const tier_;
  std::unordered_map<uint64_t, TierLoad> loads_;
  std::deque<OfferedChain> offered_;  // oldest first
  int64_t num_offered_ = 0;           // pages
  std::optional<KeptChain> keeping_;
  int64_t num_transferring_ = 0;  // pages held by loads_ and keeping_
  uint64_t last_load_ = 0;
  int num_given_up_ = 0;  // of loads_
  double now_ = 0, token_seconds_ = 0;
};

}  // namespace diffserve
