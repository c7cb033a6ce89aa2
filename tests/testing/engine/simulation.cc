// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/engine/simulation.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <random>
#include <stdexcept>

namespace diffserve::testing {

namespace {

// The requests do not depend on the kind.
EngineOptions OptionsOf(Dice& dice, const Simulation::Kind& kind) {
  EngineOptions options = RandomOptions(dice, kind.speculative_tokens);
  if (kind.has_states) options = WithStates(dice, options);
  return kind.has_draft ? WithDraft(dice, options) : options;
}

}  // namespace

Simulation::Simulation(uint64_t seed, const Kind& kind)
    : seed_(seed),
      has_tier_(kind.has_tier),
      dice_{std::mt19937_64(seed)},
      options_(OptionsOf(dice_, kind)),
      requests_(dice_, options_),
      follower_(options_.page_size),
      readers_(seed, [this](RequestId id) { CancelOfReader(id); }),
      tier_(dice_, [this](const TierEntry& entry) { return executor_->Content(entry); }),
      inbox_(options_, [this] { return Now(); }),
      loop_(options_, WatchedExecutor(kind.depth), inbox_, RandomWorld()) {
  busyness_ = dice_.Pick(1, 60);
  overhead_us_ = dice_.Pick(0, 200);
  token_us_ = dice_.Pick(1, 20);
  drains_ = dice_.Chance(10);
  if (dice_.Chance(5)) lost_at_ = static_cast<uint64_t>(dice_.Pick(1, 400));
}

std::string Simulation::Run(int arriving_turns) {
  for (int turn = 0; turn < arriving_turns && violation_.empty() && !lost_; ++turn) {
    while (dice_.Chance(busyness_) && live() < 40) Arrive();
    if (dice_.Chance(6)) CancelOne();
    if (turn % 97 == 96) ResetCache();
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
  while (!lost_ && !tier_.is_idle()) {
    tier_.Advance(/*must=*/true);
    loop_.KeepOffers(TimePoint());
  }
  if (!lost_) CheckEmpty();
  return violation_;
}

EngineLoop::World Simulation::RandomWorld() {
  EngineLoop::World world;
  if (has_tier_) world.tier = &tier_;
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

std::unique_ptr<Executor> Simulation::WatchedExecutor(int depth) {
  auto executor = std::make_unique<testing::WatchedExecutor>(
      FakeExecutor(options_, Fake(depth)), [this](const StepPlan& plan) { OnLaunch(plan); },
      [this] { OnCollect(); });
  executor_ = &executor->fake();
  return executor;
}

FakeExecutor::Options Simulation::Fake(int depth) {
  FakeExecutor::Options options;
  options.vocab_size = kSimulatedVocab;
  options.depth = depth;
  options.right_draft_percent = static_cast<int>(seed_ * 37 % 101);
  options.is_corrupt = [this](RequestId id, int position) {
    const auto it = records_.find(id);
    return it != records_.end() && it->second.corrupt_position == position;
  };
  options.on_collect = [this](uint64_t step) {
    if (step == lost_at_) throw std::runtime_error("device lost");
  };
  return options;
}

void Simulation::Arrive() {
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

int Simulation::NumRunningOf(uint64_t client) const {
  const auto is_own = [&](const auto& sequence) { return sequence->request.client == client; };
  return static_cast<int>(std::ranges::count_if(scheduler().running(), is_own));
}

int Simulation::NumWaitingOf(uint64_t client) const {
  const auto is_own = [&](auto& entry) { return entry.second.request.client == client; };
  return static_cast<int>(std::ranges::count_if(records_, is_own)) - NumRunningOf(client);
}

void Simulation::CancelOne() {
  inbox_.Cancel(~RequestId{0}, FinishReason::kCancelled);  // unknown: ignored
  if (records_.empty()) return;
  FollowedRequest& record = std::next(records_.begin(), dice_.Pick(0, live() - 1))->second;
  const FinishReason as = dice_.Chance(20) ? FinishReason::kStop : FinishReason::kCancelled;
  inbox_.Cancel(record.request.id, as);
  if (!record.cancelled_as) record.cancelled_as = as;  // the second time is ignored
}

// Empties memory, the second tier or both.
void Simulation::ResetCache() {
  const int kind = has_tier_ ? dice_.Pick(0, 2) : 0;
  inbox_.ResetPrefixCache({.memory = kind != 1, .second_tier = kind != 2});
}

void Simulation::CancelOfReader(RequestId id) {
  inbox_.Cancel(id, FinishReason::kCancelled);
  cut_.push_back(id);
}

void Simulation::Turn() {
  counters_before_ = counters();
  start_order_.Begin(scheduler());
  running_before_.clear();
  for (const auto& sequence : scheduler().running())
    running_before_.push_back(sequence->request.id);
  launched_now_ = false;
  collected_.clear();
  wasted_.clear();
  try {
    if (loop_.idle() && scheduler().transfers().NextDeadline() && dice_.Chance(20)) {
      ticks_ += 31'000'000;  // the tier hangs longer than a load may take
    } else if (has_tier_) {
      tier_.Advance(/*must=*/loop_.idle());
    }
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
  CheckReportedUse();
  CheckKnownPages();
  readers_.Turn();
  RequireNothing(readers_.violation());
  for (const RequestId id : std::exchange(cut_, {})) {
    const auto it = records_.find(id);
    if (it != records_.end() && !it->second.cancelled_as)
      it->second.cancelled_as = FinishReason::kCancelled;
  }
}

void Simulation::Lose() {
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

void Simulation::OnLaunch(const StepPlan& plan) {
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

void Simulation::OnCollect() {
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

void Simulation::CountWaste(RequestId id, int num_planned) {
  ++counts_.results_dropped;
  Require(wasters_.insert(id).second, "one step at most computes for a request that has ended");
  const auto outcome = outcomes_.find(id);
  if (outcome == outcomes_.end() || outcome->second.finish == FinishReason::kError) return;
  Require(num_planned == 1, "a request that ends by itself wastes one token at most");
  Require(outcome->second.finish == FinishReason::kStop, "an end by count is known before");
}

void Simulation::RequireNothing(const std::string& violation) {
  if (violation_.empty()) violation_ = violation;
}

bool Simulation::Require(bool condition, const std::string& what) {
  if (!condition) RequireNothing(what);
  return condition;
}

void Simulation::CheckPlan(const StepPlan& plan) {
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

void Simulation::CheckService(const StepPlan& plan) {
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
  const bool has_room = all_fit && !scheduler().transfers().HoldsPages() &&
                        plan.num_tokens() < options_.max_num_batched_tokens &&
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

void Simulation::CheckState() {
  std::map<int32_t, int> holders;
  for (const auto& sequence : scheduler().running()) {
    Require(records_.contains(sequence->request.id), "3: only live sequences run");
    std::set<int32_t> own(sequence->pages.begin(), sequence->pages.end());
    Require(own.size() == sequence->pages.size(), "2: a sequence lists a page once");
    for (int32_t page : own) ++holders[page];
  }
  const PagePool& pool = scheduler().pool();
  if (!scheduler().transfers().HoldsPages()) {
    Require(pool.num_free() + pool.num_cached() + std::ssize(holders) == options_.num_pages,
            "1: all pages are there");
    for (const auto& [page, count] : holders)
      Require(pool.holders(page) == count, "2: holders are counted");
  }
  for (const auto& plan : launched_) RequireNothing(ViolationOf(plan, scheduler(), options_));
  scheduler().CheckInvariants();
}

void Simulation::CheckReportedUse() {
  std::set<int32_t> used;
  for (const auto& sequence : scheduler().running())
    used.insert(sequence->pages.begin(), sequence->pages.end());
  Require(scheduler().transfers().num_loads() > 0 || stats_.pages_used == std::ssize(used),
          "1: pages that are only being kept are not reported as used");
}

void Simulation::CheckEmpty() {
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

void Simulation::CheckKnownPages() {
  const PrefixIndex& index = scheduler().index();
  Require(std::ssize(follower_.pages()) == index.size(), "13: each page is known");
  for (const auto& sequence : scheduler().running()) {
    if (sequence->num_indexed_pages > 0 && index.Contains(sequence->pages[0]))
      Require(follower_.Knows(*sequence), "13: indexed pages are known");
  }
}

void Simulation::TakeEvent(const TokenEvent& event) {
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

bool Simulation::EndsByItself(const FollowedRequest& record, const TokenEvent& event) {
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

}  // namespace diffserve::testing
