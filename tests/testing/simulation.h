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

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_loop.h"
#include "tests/testing/engine_requests.h"
#include "tests/testing/followed_request.h"
#include "tests/testing/kv_event_follower.h"
#include "tests/testing/plan_checks.h"
#include "tests/testing/simulated_readers.h"
#include "tests/testing/simulated_requests.h"
#include "tests/testing/simulation_counts.h"
#include "tests/testing/start_order.h"
#include "tests/testing/watched_executor.h"

namespace diffserve::testing {

class Simulation {
 public:
  using Outcome = FollowedRequest::Outcome;  // it does not depend on depth and speculative tokens
  using Counts = SimulationCounts;

  struct Kind {
    int depth = 1;  // Executor::depth(); above 1 only without speculative_tokens
    int speculative_tokens = 0;
    bool has_states = false;  // the model's layers keep states and see windows
  };
  // Request number i is the same for each kind.
  Simulation(uint64_t seed, const Kind& kind)
      : seed_(seed),
        dice_{std::mt19937_64(seed)},
        options_(RandomOptions(dice_, kind.speculative_tokens, kind.has_states)),
        requests_(dice_, options_),
        follower_(options_.page_size),
        readers_(seed, [this](RequestId id) { CancelOfReader(id); }),
        inbox_(options_, [this] { return Now(); }),
        loop_(options_, WatchedExecutor(kind.depth), inbox_, RandomWorld()) {
    busyness_ = dice_.Pick(1, 60);
    overhead_us_ = dice_.Pick(0, 200);
    token_us_ = dice_.Pick(1, 20);
    drains_ = dice_.Chance(10);
    if (dice_.Chance(5)) lost_at_ = static_cast<uint64_t>(dice_.Pick(1, 400));
  }

  // Runs `arriving_turns` turns with arrivals, then as many as finish what is left.
  std::string Run(int arriving_turns) {
    for (int turn = 0; turn < arriving_turns && violation_.empty() && !lost_; ++turn) {
      while (dice_.Chance(busyness_) && live() < 40) Arrive();
      if (dice_.Chance(6)) CancelOne();
      if (turn % 97 == 96) inbox_.ResetPrefixCache();
      if (HasWork()) Turn();
    }
    if (drains_ && !lost_) inbox_.Drain(TimePoint());  // its deadline has passed
    closing_ = drains_;
    const int64_t limit = 100000;
    for (int64_t turn = 0; HasWork() && violation_.empty() && !lost_; ++turn) {
      Turn();
      Require(turn < limit, "7: the work ends");
    }
    Require(live() == 0, "11: every request has ended");
    if (closing_) {
      Arrive();
      Require(live() == 0, "a loop that ends refuses");
    }
    readers_.Finish();
    RequireNothing(readers_.violation());
    inbox_.Stop();
    Require(!loop_.Turn(), "a stopped loop ends");
    if (!lost_) CheckEmpty();
    return violation_;
  }

  const EngineOptions& options() const { return options_; }
  const SchedulerCounters& counters() const { return scheduler().counters(); }
  const StateStore::Counters& snapshots() const { return scheduler().states().counters(); }
  const Counts& counts() const { return counts_; }
  const StartOrder& start_order() const { return start_order_; }
  uint64_t kv_events() const { return follower_.num_events(); }
  const SimulatedReaders::Counts& readers() const { return readers_.counts(); }
  const std::map<RequestId, Outcome>& outcomes() const { return outcomes_; }

 private:
  // --- Random choices ---
  EngineLoop::World RandomWorld() {
    EngineLoop::World world;
    world.now = [this] { return Now(); };
    world.hash_key = dice_.random();
    if (dice_.Chance(25))
      world.hash_mask = (1u << dice_.Pick(1, 6)) - 1;  // almost every lookup collides
    world.deliver = [this](const TokenEvent& event) { TakeEvent(event); };
    world.publish = [this](const EngineStats& stats) { stats_ = stats; };
    world.kv_events = [this](const std::vector<KvEvent>& events) {
      Require(!events.empty(), "13: a list of events is not empty");
      for (const KvEvent& event : events) RequireNothing(follower_.Take(event));
    };
    return world;
  }
  // Plans are checked before the executor gets them.
  std::unique_ptr<Executor> WatchedExecutor(int depth) {
    return std::make_unique<testing::WatchedExecutor>(
        FakeExecutor(options_, Fake(depth)), [this](const StepPlan& plan) { OnLaunch(plan); },
        [this] { OnCollect(); });
  }
  FakeExecutor::Options Fake(int depth) {
    FakeExecutor::Options options;
    options.vocab_size = kSimulatedVocab;
    options.depth = depth;
    options.is_corrupt = [this](RequestId id, int position) {
      const auto it = records_.find(id);
      return it != records_.end() && it->second.corrupt_position == position;
    };
    options.on_collect = [this](uint64_t step) {
      if (step == lost_at_) throw std::runtime_error("device lost");
    };
    return options;
  }

  // --- What happens ---
  void Arrive() {
    const uint64_t arrival = arrivals_++;
    Dice dice{std::mt19937_64(seed_ * 1000003 + arrival)};
    const Request model = requests_.Next(dice);
    const int continuations = dice.Chance(15) ? dice.Pick(2, 4) : 1;
    for (int i = 0; i < continuations; ++i) {
      Request request = model;
      request.id = arrival * 4 + static_cast<uint64_t>(i) + 1;
      request.sequence = i;
      if (model.constraint != nullptr) request.constraint = model.constraint->Clone();
      request.arrival = Now();
      if (i == 0 && dice.Chance(20))
        request.start_by = request.arrival + std::chrono::microseconds(dice.Pick(0, 5000));
      const int64_t tokens = static_cast<int64_t>(model.prompt.size()) + model.max_tokens;
      const int64_t slots = int64_t{options_.page_size} * options_.num_pages;
      const bool fits = tokens <= options_.max_model_len && MaxCachedTokens(model) <= slots;
      const int waiting = live() - static_cast<int>(scheduler().running().size());
      const int own = NumWaitingOf(request.client);
      const StatusCode expected = closing_ || lost_ ? StatusCode::kUnavailable
                                  : !fits           ? StatusCode::kInvalidArgument
                                  : own >= 7 * (options_.max_waiting_requests - waiting)
                                      ? StatusCode::kResourceExhausted
                                      : StatusCode::kOk;
      const int corrupt = dice.Chance(3) ? dice.Pick(1, static_cast<int>(tokens)) : -1;
      const Status status = inbox_.Submit(request);
      const bool foreseen = status.retry_after_s() > 0;
      counts_.foreseen += foreseen ? 1 : 0;
      Require(!foreseen || own + NumRunningOf(request.client) > 0 || request.start_by <= Now(),
              "a client with nothing here has no wait: " + status.message());
      Require(status.code() == expected || (foreseen && expected == StatusCode::kOk),
              "admission refuses exactly what it must: " + status.message());
      if (!status.ok()) {
        ++counts_.refused;
        return;
      }
      records_.try_emplace(request.id, request, kSimulatedVocab, corrupt);
      readers_.Open(request.id);
    }
  }

  int NumRunningOf(uint64_t client) const {
    const auto is_own = [&](const auto& sequence) { return sequence->request.client == client; };
    return static_cast<int>(std::ranges::count_if(scheduler().running(), is_own));
  }
  int NumWaitingOf(uint64_t client) const {
    const auto is_own = [&](auto& entry) { return entry.second.request.client == client; };
    return static_cast<int>(std::ranges::count_if(records_, is_own)) - NumRunningOf(client);
  }
  void CancelOne() {
    inbox_.Cancel(~RequestId{0}, FinishReason::kCancelled);  // unknown: ignored
    if (records_.empty()) return;
    FollowedRequest& record = std::next(records_.begin(), dice_.Pick(0, live() - 1))->second;
    const FinishReason as = dice_.Chance(20) ? FinishReason::kStop : FinishReason::kCancelled;
    inbox_.Cancel(record.request.id, as);
    if (!record.cancelled_as) record.cancelled_as = as;  // the second time is ignored
  }

  // Takes effect with the next turn, unless the request ends in this one.
  void CancelOfReader(RequestId id) {
    inbox_.Cancel(id, FinishReason::kCancelled);
    cut_.push_back(id);
  }

  bool HasWork() const { return !loop_.idle() || !records_.empty(); }

  void Turn() {
    counters_before_ = counters();
    start_order_.Begin(scheduler());
    running_before_.clear();
    for (const auto& sequence : scheduler().running())
      running_before_.push_back(sequence->request.id);
    launched_now_ = false;
    collected_.clear();
    wasted_.clear();
    try {
      Require(loop_.Turn(), "a loop goes on until it is stopped");
    } catch (const std::logic_error& error) {
      Require(false, error.what());
    } catch (const std::runtime_error&) {
      Lose();
      return;
    }
    Require(launched_now_ || !collected_.empty() || loop_.idle(), "7: each turn makes progress");
    Require(launched_now_ || counters().deferrals == counters_before_.deferrals,
            "only steps are counted");
    for (const auto& [id, num_planned] : wasted_) CountWaste(id, num_planned);
    CheckState();
    CheckKnownPages();
    readers_.Turn();
    RequireNothing(readers_.violation());
    for (const RequestId id : std::exchange(cut_, {})) {
      const auto it = records_.find(id);
      if (it != records_.end() && !it->second.cancelled_as)
        it->second.cancelled_as = FinishReason::kCancelled;
    }
  }

  // Does what Engine::Fail does when the executor throws.
  void Lose() {
    lost_ = true;
    ++counts_.lost;
    std::vector<RequestId> live;
    for (const auto& [id, record] : records_) live.push_back(id);
    Require(inbox_.Fail() == live, "11: a failure ends exactly what lives");
    for (const RequestId id : live) {
      TokenEvent end;
      end.request = id;
      end.finish = FinishReason::kError;
      end.error = Status(StatusCode::kUnavailable, "the engine has failed");
      readers_.Post(std::move(end));
      inbox_.Finish(id);
    }
    records_.clear();
    Arrive();
    Require(records_.empty() && !loop_.Turn(), "a loop that has failed refuses and ends");
  }

  void OnLaunch(const StepPlan& plan) {
    Require(plan.step == ++steps_, "steps are numbered one by one");
    ticks_ += overhead_us_ + token_us_ * plan.num_tokens();
    launched_now_ = true;
    CheckPlan(plan);
    CheckService(plan);
    RequireNothing(ViolationOfHits(plan, running_before_, scheduler(), options_));
    for (const PlannedSequence& planned : plan.sequences) {
      Require(planned.first_step == started_.insert(planned.id()).second,
              "the first step of a sequence is marked");
    }
    CheckState();
    if (!launched_.empty()) ++counts_.launched_ahead;
    launched_.push_back(CopyOf(plan));
  }

  void OnCollect() {
    first_pages_.clear();
    std::set<RequestId> running;
    for (const auto& sequence : scheduler().running()) {
      running.insert(sequence->request.id);
      if (sequence->num_indexed_pages > 0) first_pages_[sequence->request.id] = sequence->pages[0];
    }
    for (const PlannedCopy& planned : launched_.front()) {
      collected_.insert(planned.id);
      if (!running.contains(planned.id)) wasted_.emplace_back(planned.id, planned.num_planned);
    }
    launched_.pop_front();
  }

  // A request that ends normally wastes the token that was planned ahead; a cancelled or broken one
  // wastes what was launched.
  void CountWaste(RequestId id, int num_planned) {
    ++counts_.results_dropped;
    Require(wasters_.insert(id).second, "one step at most computes for a request that has ended");
    const auto outcome = outcomes_.find(id);
    if (outcome == outcomes_.end() || outcome->second.finish == FinishReason::kError) return;
    Require(num_planned == 1, "a request that ends by itself wastes one token at most");
    Require(outcome->second.finish == FinishReason::kStop, "an end by count is known before");
  }

  // --- Invariants ---
  void RequireNothing(const std::string& violation) {
    if (violation_.empty()) violation_ = violation;
  }
  bool Require(bool condition, const std::string& what) {
    if (!condition) RequireNothing(what);
    return condition;
  }

  // 4, 5, 6, 7.
  void CheckPlan(const StepPlan& plan) {
    RequireNothing(ViolationOf(plan, scheduler(), options_));
    const Sequence& oldest = *scheduler().running().front();
    const bool all_is_planned = oldest.num_committed < oldest.num_computed &&
                                oldest.num_remaining() == 0;
    const bool advances = std::ranges::any_of(
        plan.sequences, [&](const auto& s) { return s.id() == oldest.request.id; });
    Require(advances || all_is_planned || oldest.share == 0, "7: the oldest sequence advances");
    const bool same = std::exchange(last_oldest_, oldest.request.id) == oldest.request.id;
    idle_steps_ = advances || all_is_planned || !same ? 0 : idle_steps_ + 1;
    Require(idle_steps_ <= options_.max_num_seqs, "7: a client's sequences take turns");
    for (const auto& sequence : scheduler().running()) {
      counts_.shared += sequence->share == 0 ? 1 : 0;
      for (const PlannedSequence& of : plan.sequences)
        Require(of.id() != sequence->request.id || of.num_planned <= sequence->share,
                "7: no sequence takes more than its share");
    }
  }

  // 8 and 9, after Plan.
  void CheckService(const StepPlan& plan) {
    const auto stays = std::ranges::find_if(
        running_before_, [&](RequestId id) { return !records_.at(id).cancelled_as; });
    Require(stays == running_before_.end() || scheduler().running().front()->request.id == *stays,
            "8: the oldest running sequence stays");
    int64_t pages_at_end = 0;
    for (const auto& sequence : scheduler().running())
      pages_at_end += PagesFor(MaxCachedTokens(sequence->request), options_.page_size);
    for (const Sequence* sequence : scheduler().queue().ByArrival())
      Require(sequence->preemptions <= options_.max_preemptions_per_sequence,
              "8: preemptions are bounded");
    const Sequence* const next = scheduler().queue().Next();
    if (next == nullptr) return;
    // Checks every client, because any of them may have been next when this step was planned.
    const bool all_fit = std::ranges::all_of(scheduler().queue().clients(), [&](const auto& entry) {
      const ClientQueue& client = entry.second;
      if (client.waiting.empty()) return true;
      const int64_t slots = MaxCachedTokens(client.waiting.front()->request);
      return pages_at_end + PagesFor(slots, options_.page_size) <= options_.num_pages &&
             client.tokens_left > 0;
    });
    const bool has_room = all_fit && plan.num_tokens() < options_.max_num_batched_tokens &&
                          std::ssize(scheduler().running()) < options_.MaxRunning();
    const bool deferred = counters().deferrals > counters_before_.deferrals;
    RequireNothing(start_order_.ViolationOf(scheduler(), deferred));
    const bool preempted = counters().preemptions > counters_before_.preemptions;
    Require(!has_room || deferred || preempted, "8: what fits is admitted");
    const bool same_head = std::exchange(last_head_, next->request.id) == next->request.id;
    steps_deferred_ = deferred && same_head ? steps_deferred_ + 1 : 0;
    Require(steps_deferred_ <= options_.max_model_len,
            "8: waiting for a prefix takes no longer than computing it");
  }

  // 1, 2, 3 from outside, and the scheduler's own checks.
  void CheckState() {
    std::map<int32_t, int> holders;
    for (const auto& sequence : scheduler().running()) {
      Require(records_.contains(sequence->request.id), "3: only live sequences run");
      std::set<int32_t> own(sequence->pages.begin(), sequence->pages.end());
      Require(own.size() == sequence->pages.size(), "2: a sequence lists a page once");
      for (int32_t page : own) ++holders[page];
    }
    const PagePool& pool = scheduler().pool();
    Require(pool.num_free() + pool.num_cached() + std::ssize(holders) == options_.num_pages,
            "1: all pages are there");
    for (const auto& [page, count] : holders)
      Require(pool.holders(page) == count, "2: holders are counted");
    for (const auto& plan : launched_) RequireNothing(ViolationOf(plan, scheduler(), options_));
    scheduler().CheckInvariants();
  }

  // After the last turn.
  void CheckEmpty() {
    Require(scheduler().pool().num_in_use() == 0, "3: no page is in use after the last request");
    scheduler().CheckInvariants();
    EngineStats stats = stats_;
    inbox_.Describe(stats);
    Require(stats.waiting == 0 && stats.waiting_tokens == 0 && stats.running == 0,
            "nothing is counted after the last request");
    uint64_t ended = 0;
    for (const uint64_t count : stats.finished) ended += count;
    Require(ended == counts_.ended(), "11: the statistics count each end once");
  }

  // 13.
  void CheckKnownPages() {
    const PrefixIndex& index = scheduler().index();
    Require(std::ssize(follower_.pages()) == index.size(), "13: each page is known");
    for (const auto& sequence : scheduler().running()) {
      if (sequence->num_indexed_pages > 0 && index.Contains(sequence->pages[0]))
        Require(follower_.Knows(*sequence), "13: indexed pages are known");
    }
  }

  // 11 and 12.
  void TakeEvent(const TokenEvent& event) {
    const auto it = records_.find(event.request);
    if (!Require(it != records_.end() && inbox_.IsLive(event.request),
                 "11: no event after the terminal one"))
      return;
    FollowedRequest& record = it->second;
    readers_.Post(event);
    RequireNothing(record.Take(event));
    if (event.finish == FinishReason::kNone) return;
    if (EndsByItself(record, event)) outcomes_.emplace(event.request, std::move(record.outcome));
    records_.erase(it);
    inbox_.Finish(event.request);
  }

  // True if it has ended normally.
  bool EndsByItself(const FollowedRequest& record, const TokenEvent& event) {
    if (record.cancelled_as && (!closing_ || event.error.ok())) {
      Require(event.finish == *record.cancelled_as && event.tokens.empty(),
              "11: what is cancelled ends as it was asked to");
      ++counts_.cancelled;
      return false;
    }
    if (event.error.code() == StatusCode::kResourceExhausted) {
      Require(record.request.start_by <= Now() && !started_.contains(event.request),
              "only a request that waited too long leaves the queue");
      ++counts_.overdue;
      return false;
    }
    if (event.error.code() == StatusCode::kUnavailable) {
      Require(closing_, "an error has a cause");
      ++counts_.drained;
      return false;
    }
    Require(collected_.contains(event.request), "an event comes from a planned sequence");
    RequireNothing(record.CheckEnd(event));
    counts_.constrained += record.request.constraint != nullptr ? 1 : 0;
    if (event.error.code() == StatusCode::kInvalidArgument) {
      ++counts_.refused_by_constraint;
    } else if (event.finish == FinishReason::kError) {
      const auto page = first_pages_.find(event.request);
      Require(page == first_pages_.end() || !scheduler().index().Contains(page->second),
              "10: pages of broken logits are not in the index");
      ++counts_.corrupted;
    } else {
      ++counts_.finished;
    }
    return true;
  }

  int live() const { return static_cast<int>(records_.size()); }
  const Scheduler& scheduler() const { return loop_.scheduler(); }
  TimePoint Now() { return TimePoint(std::chrono::microseconds(++ticks_)); }

  const uint64_t seed_;
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
  Inbox inbox_;
  EngineLoop loop_;  // declared last: it uses all members above
};

}  // namespace diffserve::testing
