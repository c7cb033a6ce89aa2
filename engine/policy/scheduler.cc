// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/scheduler.h"

#include <algorithm>
#include <utility>

#include "engine/policy/drawn_tokens.h"
#include "engine/policy/request_fit.h"
#include "kernels/process/check.h"

namespace diffserve {
namespace {

bool PlansSome(const std::unique_ptr<Sequence>& sequence) { return sequence->num_planned > 0; }

}  // namespace

// The rest of the plan that is being built.
struct Scheduler::Budget {
  int tokens = 0;            // for prompts; decodes of running sequences are already subtracted
  int half = 0;              // a prompt is long if it has more tokens to compute than this
  bool others_wait = false;  // more than one sequence has a prompt to compute
  bool long_served = false;
  bool out_of_pages = false;
  bool deferred = false;  // the head of the queue waits for a prefix

  void Take(const Sequence& sequence, int planned) {
    tokens -= planned;
    long_served |= sequence.num_remaining() > half;
  }
};

Scheduler::Scheduler(const EngineOptions& options, PrefixIndex::Options index_options,
                     PageTier* tier)
    : options_(options),
      pages_(options, index_options),
      transfers_(options, tier, pages_),
      proposals_(options, pages_),
      shares_(options, pages_) {
  DS_CHECK(options.MaxRunning() > 0 && options.page_size > 0 && options.max_model_len > 0,
           "every size of the engine is positive");
}

void Scheduler::Add(Request request) {
  DS_CHECK(CheckFits(options_, request).ok(), "admission has checked that the request fits");
  auto sequence = std::make_unique<Sequence>(std::move(request), options_.page_size);
  proposals_.Add(*sequence);
  const bool is_new = by_id_.emplace(sequence->request.id, sequence.get()).second;
  DS_CHECK(is_new, "a request id is used once");
  sequence->arrival = ++arrivals_;
  sequence->client = &queue_.Enter(sequence->request.client);
  queue_.Put(std::move(sequence));
}

std::optional<TokenEvent> Scheduler::End(RequestId id, FinishReason finish, Status error) {
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return std::nullopt;
  TokenEvent event;
  event.request = id;
  event.finish = finish;
  event.error = std::move(error);
  event.cached_tokens = it->second->cached_tokens;
  event.loaded_tokens = it->second->loaded_tokens;
  event.prediction = it->second->prediction_use;
  proposals_.Remember(*it->second, finish);
  Remove(*it->second);
  return event;
}

// Releases the sequence's pages and destroys it.
void Scheduler::Remove(const Sequence& sequence) {
  by_id_.erase(sequence.request.id);
  ClientQueue& client = *sequence.client;
  const auto it = std::ranges::find(running_, &sequence,
                                    [](const auto& running) { return running.get(); });
  if (it != running_.end()) {
    ReleasePages(**it);
    running_.erase(it);
    --client.num_running;
  } else if (!transfers_.End(sequence)) {
    queue_.Remove(sequence);
  }
  queue_.Leave(client);
}

int Scheduler::free_seats() const {
  return short_of_pages_ ? 0 : options_.MaxRunning() - static_cast<int>(running_.size());
}

Scheduler::Budget Scheduler::NewBudget(const StepCosts& costs) const {
  const auto decodes = static_cast<int>(std::ranges::count_if(
      running_, [](const auto& s) { return s->num_remaining() == 1 && s->share > 0; }));
  const auto prompts = std::ranges::count_if(running_,
                                             [](const auto& s) { return s->num_remaining() > 1; });
  Budget budget;
  budget.tokens = options_.max_num_batched_tokens - decodes;
  if (decodes > 0 && costs.mixed_tokens_max) {
    const int prompt_tokens = std::max(options_.page_size, *costs.mixed_tokens_max - decodes);
    budget.tokens = std::min(budget.tokens, prompt_tokens);
  }
  budget.half = std::max(1, budget.tokens / 2);
  budget.others_wait = prompts + queue_.num_waiting() > 1;
  return budget;
}

StepPlan Scheduler::Plan(const StepCosts& costs) {
  DS_CHECK(HasWork() && due_.size() < 2, "there is something to plan, at most one step ahead");
  DS_CHECK(due_.empty() || options_.speculative_tokens == 0,
           "what is proposed follows known tokens, so nothing is planned ahead");
  pages_.BeginPlan(running_);
  Budget budget;
  if (MustCommitFirst() || !MakeRoom() || !PlanAll(costs, budget)) return {};
  const bool is_empty = std::ranges::none_of(running_, PlansSome);
  DS_CHECK(!is_empty || !due_.empty() || (running_.empty() && pages_.num_held_by_transfers() > 0),
           "the oldest sequence always advances");
  if (is_empty) return {};
  counters_.deferrals += budget.deferred ? 1 : 0;
  return DescribePlan();
}

// False: pages are short while a plan is not committed.
bool Scheduler::PlanAll(const StepCosts& costs, Budget& budget) {
  shares_.ShareOut(running_, queue_, costs.overhead_tokens);
  budget = NewBudget(costs);
  if (!PlanRunning(budget)) return false;
  if (shares_.shared_out() && due_.empty() && std::ranges::none_of(running_, PlansSome)) {
    // No sequence with a share finds a page, so those that hold the pages continue.
    shares_.Lift(running_, queue_);
    budget = NewBudget(costs);
    PlanRunning(budget);
  }
  PlanWaiting(budget, costs);
  PlanLeftover(budget);
  proposals_.Plan(running_, costs);
  return true;
}

// Advances the planned sequences; those that decode come first.
StepPlan Scheduler::DescribePlan() {
  std::vector<Sequence*> planned;
  planned.reserve(running_.size());
  for (const auto& sequence : running_) {
    if (PlansSome(sequence)) planned.push_back(sequence.get());
  }
  std::ranges::stable_partition(planned, [](const Sequence* s) { return s->num_remaining() == 1; });
  StepPlan plan;
  plan.step = ++step_;
  ClientShares::TakeTurns(running_, step_);
  std::vector<Due>& due = due_.emplace_back();
  due.reserve(planned.size());
  plan.sequences.reserve(planned.size());
  for (Sequence* sequence : planned) {
    const PlannedSequence& entry = plan.sequences.emplace_back(Describe(*sequence));
    sequence->num_computed += std::exchange(sequence->num_planned, 0);
    due.push_back({entry.id(), entry.end(), entry.samples});
  }
  return plan;
}

// Whether a sequence needs the token in flight before its next draw can be planned.
bool Scheduler::MustCommitFirst() const {
  return std::ranges::any_of(running_, [](const auto& sequence) {
    return sequence->awaits_draw() && sequence->num_remaining() > 0 && sequence->draws_by_outputs();
  });
}

// Preempts sequences of clients that hold more than their part, youngest first, if the next client
// has no room although it would hold no more than its own part. False: a sequence should be
// preempted, but a plan is not committed.
bool Scheduler::MakeRoom() {
  Sequence* const next = queue_.Next();
  if (next == nullptr || queue_.clients().size() < 2 || !shares_.IsWithinPart(*next, queue_))
    return true;
  const auto has_room = [&] {
    return std::ssize(running_) < options_.MaxRunning() &&
           pages_.HasRoomFor(*next, pages_.FindPrefix(*next), running_);
  };
  while (!has_room()) {
    Sequence* const victim = shares_.VictimFor(*next, running_, queue_);
    if (victim == nullptr) return true;
    if (!due_.empty()) return false;
    Preempt(*victim);
  }
  return true;
}

// Plans the running sequences, oldest first. False: pages are short while a plan is not committed.
// Its commit may free some; otherwise the next call preempts a sequence.
bool Scheduler::PlanRunning(Budget& budget) {
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    const bool decodes = sequence.num_remaining() == 1;
    const int wanted = std::min(sequence.share,
                                decodes ? 1 : TokensFor(sequence.num_remaining(), budget));
    while (!pages_.HasFree(pages_.Missing(sequence, wanted))) {
      Sequence* const victim = VictimBehind(i);
      if (victim == nullptr) break;
      if (!due_.empty()) {
        TakeBackPlan();
        return false;
      }
      if (victim->num_remaining() == 1 && victim->share > 0) ++budget.tokens;
      budget.out_of_pages = true;  // a step that preempts admits no sequence
      Preempt(*victim);
    }
    const int planned = pages_.Grow(sequence, wanted);
    if (!decodes) budget.Take(sequence, planned);
    budget.out_of_pages |= planned < wanted;
  }
  return true;
}

void Scheduler::TakeBackPlan() {
  for (const auto& sequence : running_) {
    sequence->num_planned = 0;
    pages_.Trim(*sequence);
  }
}

void Scheduler::PlanWaiting(Budget& budget, const StepCosts& costs) {
  bool has_room = true;
  while (std::ssize(running_) < options_.MaxRunning() && budget.tokens > 0 &&
         !budget.out_of_pages) {
    Sequence* const next = queue_.Next();
    if (next == nullptr) break;
    ClientQueue& client = *next->client;
    const std::vector<int32_t> hits = pages_.FindPrefix(*next);
    const int num_hits = static_cast<int>(hits.size());
    const int remaining = next->num_tokens() - num_hits * options_.page_size;
    const int wanted = std::min(TokensFor(remaining, budget), client.tokens_left);
    const bool deferred = wanted > 0 && pages_.PrefixIsUnderWay(*next, num_hits, wanted, running_);
    if (wanted == 0 || deferred) {
      budget.deferred |= deferred;
      client.passed_over = true;
      continue;
    }
    has_room = pages_.HasRoomFor(*next, hits, running_);
    if (!has_room) {
      transfers_.StopKeeping();
      break;
    }
    if (transfers_.TryLoad(*next, num_hits, running_, costs, [&] { return queue_.Remove(*next); }))
      continue;
    Sequence& head = Admit(hits);
    head.share = std::min(head.share, client.tokens_left);
    const int planned = pages_.Grow(head, wanted);
    client.tokens_left -= shares_.shared_out() ? planned : 0;
    budget.Take(head, planned);
    budget.out_of_pages |= planned < wanted;
  }
  short_of_pages_ = budget.out_of_pages || !has_room;
  for (auto& [id, client] : queue_.clients()) client.passed_over = false;
}

// Gives the tokens that are left to the oldest sequences.
void Scheduler::PlanLeftover(Budget& budget) {
  for (const auto& sequence : running_) {
    if (budget.tokens == 0) return;
    const int wanted = std::min({sequence->num_remaining() - sequence->num_planned, budget.tokens,
                                 sequence->share - sequence->num_planned});
    budget.tokens -= pages_.Grow(*sequence, wanted);
  }
}

// The number of the step's remaining tokens for a prompt with `remaining` tokens to compute.
int Scheduler::TokensFor(int remaining, const Budget& budget) const {
  const int tokens = std::min(remaining, budget.tokens);
  if (!budget.others_wait || remaining <= budget.half) return tokens;
  return std::min(tokens, budget.long_served ? options_.page_size : budget.half);
}

// Starts the head of the queue at the end of its cached prefix.
Sequence& Scheduler::Admit(const std::vector<int32_t>& hits) {
  Sequence& head = *running_.emplace_back(queue_.TakeNext());
  ++head.client->num_running;
  head.share = Sequence::kUnlimited;
  head.last_turn = step_;  // so that its turn comes after those of the running sequences
  pages_.Start(head, hits);
  if (!head.admitted_before) {
    head.admitted_before = true;
    head.cached_tokens = std::min(head.num_computed, head.num_prompt_tokens());
    head.loaded_tokens = std::max(
        0, std::min(head.cached_tokens, head.loaded_end) - head.loaded_begin);
    CountPrefix(head);
  }
  return head;
}

void Scheduler::CountPrefix(Sequence& sequence) {
  if (pages_.TakesFromCache(sequence)) {
    counters_.prefix_queries += static_cast<uint64_t>(sequence.num_prompt_tokens());
    counters_.prefix_hits += static_cast<uint64_t>(sequence.cached_tokens);
    counters_.tier_hits += static_cast<uint64_t>(sequence.loaded_tokens);
    if (sequence.num_indexed_pages > 0) return;
  }
  ++counters_.prefix_misses[static_cast<size_t>(pages_.WhyMissing(sequence))];
}

void Scheduler::ReleasePages(Sequence& sequence) {
  transfers_.Offer(sequence);
  pages_.Release(sequence);
}

// Picks the sequence to preempt for running_[index]: among the later ones, which are younger and
// not planned yet, the youngest of the client that holds the most pages. A sequence that was
// preempted as often as allowed is spared. When it was admitted, it and all before it could run to
// their ends together, so if one of those lacks a page, a later sequence exists. nullptr: there is
// none.
Sequence* Scheduler::VictimBehind(size_t index) const {
  Sequence* victim = nullptr;
  for (size_t i = running_.size(); i-- > index + 1;) {
    Sequence& candidate = *running_[i];
    if (candidate.preemptions >= options_.max_preemptions_per_sequence) continue;
    if (victim == nullptr || candidate.client->num_pages > victim->client->num_pages)
      victim = &candidate;
  }
  return victim;
}

// Releases the sequence's pages and lets it wait again, before its client's later requests. It will
// compute its tokens again, with the same bits.
void Scheduler::Preempt(Sequence& victim) {
  DS_CHECK(victim.num_planned == 0, "pages go by age, so a younger sequence is not planned yet");
  ReleasePages(victim);
  victim.num_computed = victim.num_committed = 0;
  victim.prompt_scores.clear();
  victim.asked_tier = false;
  ++victim.preemptions;
  ++counters_.preemptions;
  --victim.client->num_running;
  const auto it = std::ranges::find(running_, &victim,
                                    [](const auto& running) { return running.get(); });
  queue_.Put(std::move(*it));
  running_.erase(it);
}

// Describes the sequence's part of the step. Adds the tokens that it draws to the sequence.
PlannedSequence Scheduler::Describe(Sequence& sequence) {
  const Request& request = sequence.request;
  PlannedSequence planned;
  planned.request = &request;
  planned.num_computed = sequence.num_computed;
  planned.num_planned = sequence.num_planned;
  planned.first_step = !std::exchange(sequence.started, true);
  const int num_proposed = static_cast<int>(sequence.proposed.size());
  const bool reaches_last = sequence.num_planned - num_proposed == sequence.num_remaining();
  planned.samples = reaches_last && request.max_tokens > 0 ? 1 + num_proposed : 0;
  planned.proposed = sequence.proposed;
  planned.scores_prompt = sequence.wants_prompt_scores() &&
                          sequence.num_computed < sequence.num_prompt_tokens();
  pages_.Describe(sequence, planned);
  planned.draft = proposals_.TakeDraft(sequence);
  const auto num_outputs = static_cast<size_t>(sequence.num_outputs());
  if (planned.samples > 0) {
    if (sequence.num_outputs() < request.sampling.min_tokens) {
      planned.banned_tokens = request.sampling.stop_token_ids;
      if (!request.sampling.ignore_eos) {
        planned.banned_tokens.insert(planned.banned_tokens.end(), request.eos_token_ids.begin(),
                                     request.eos_token_ids.end());
      }
    }
    sequence.tail.insert(sequence.tail.end(), static_cast<size_t>(planned.samples),
                         kDrawnByStepBefore);
  }
  planned.outputs = sequence.outputs().first(num_outputs);
  return planned;
}

std::vector<TokenEvent> Scheduler::Commit(const StepResult& result) {
  DS_CHECK(!due_.empty() && result.size() == due_.front().size(),
           "a result is parallel to its plan");
  std::vector<TokenEvent> events;
  const std::vector<Due> due = std::move(due_.front());
  due_.pop_front();
  events.reserve(due.size());
  for (size_t i = 0; i < due.size(); ++i) {
    const auto it = by_id_.find(due[i].request);
    if (it == by_id_.end()) continue;  // it has ended since the plan
    Sequence& sequence = *it->second;
    TokenEvent event = CommitSequence(sequence, due[i], result[i]);
    const bool ended = event.finish != FinishReason::kNone;
    // A constraint that has met its limits.
    counters_.constraints_failed += event.finish == FinishReason::kLength && !event.error.ok();
    if (ended) {
      proposals_.Remember(sequence, event.finish);
      Remove(sequence);
    }
    if (ended || !event.tokens.empty() || !event.prompt_logprobs.empty())
      events.push_back(std::move(event));
  }
  return events;
}

TokenEvent Scheduler::CommitSequence(Sequence& sequence, const Due& due,
                                     const SequenceResult& result) {
  TokenEvent event;
  event.request = sequence.request.id;
  event.cached_tokens = sequence.cached_tokens;
  event.loaded_tokens = sequence.loaded_tokens;
  DS_CHECK(static_cast<int>(result.samples.size()) == due.samples,
           "as many tokens are drawn as the plan says");
  if (!result.error.ok()) {
    EndByConstraint(result.error, event);
    return event;
  }
  const bool finite = std::ranges::all_of(result.prompt_scores, &SampleResult::finite) &&
                      (due.samples == 0 || result.samples.front().finite);
  if (finite && result.observed.ok()) {
    TakeResult(sequence, due, result, event);
  } else {
    EndCorrupted(sequence, result, finite, event);
  }
  return event;
}

void Scheduler::TakeResult(Sequence& sequence, const Due& due, const SequenceResult& result,
                           TokenEvent& event) {
  TakePromptScores(sequence, due.end, result, event);
  int rejected = 0;
  if (due.samples > 0) {
    const int taken = TakeDraws(sequence, due.end, result, event);
    rejected = due.samples - taken;
    if (due.samples > 1) proposals_.Learn(sequence, due.samples - 1, taken - 1);
    pages_.TakeBack(sequence, rejected);
  }
  event.prediction = sequence.prediction_use;
  sequence.num_committed = due.end - rejected;
  pages_.Commit(sequence);
  if (due.end == MaxCachedTokens(sequence.request) && due.samples == 0)
    event.finish = FinishReason::kLength;  // max_tokens is 0: only the prompt is computed
}

void Scheduler::EndCorrupted(Sequence& sequence, const SequenceResult& result, bool finite,
                             TokenEvent& event) {
  if (pages_.ForgetChain(sequence)) transfers_.Forget(sequence);
  ++counters_.corrupted;
  event.finish = FinishReason::kError;
  event.error = finite ? result.observed
                       : Status(StatusCode::kInternal,
                                "the model produced non-finite logits" + result.non_finite_hint);
}

void Scheduler::Put(TierTransfers::Sequences sequences) {
  for (std::unique_ptr<Sequence>& sequence : sequences) queue_.Put(std::move(sequence));
}

void Scheduler::FinishTransfers() {
  Put(transfers_.Finish());
  transfers_.Keep(running_, /*starts_chains=*/!short_of_pages_);
}

// The sequences of slow loads wait again. Nothing more is loaded until the tier has released their
// pages.
void Scheduler::GiveUpSlowLoads(double now) { Put(transfers_.GiveUpSlow(now)); }

void Scheduler::ResetPrefixCache(CacheReset which) {
  transfers_.Reset(which);
  if (which.memory) pages_.ClearCache();
}

void Scheduler::CheckInvariants() const {
  pages_.CheckInvariants(running_, transfers_.HeldPages(), transfers_.HeldSnapshots());
  transfers_.CheckInvariants();
  ClientShares::CheckInvariants(running_, queue_);
  const std::vector<const Sequence*> waiting = queue_.ByArrival();
  for (const Sequence* sequence : waiting) {
    DS_CHECK(sequence->state.slot < 0 && sequence->pages.empty() && sequence->num_planned == 0,
             "what waits holds nothing");
    DS_CHECK(sequence->num_computed == 0 && sequence->num_committed == 0, "what waits begins anew");
    DS_CHECK(!sequence->awaits_draw(), "what waits has known tokens only");
  }
  DS_CHECK(by_id_.size() == running_.size() + waiting.size() + transfers_.LoadingRequests().size(),
           "every sequence runs, waits or is being loaded");
}

}  // namespace diffserve
