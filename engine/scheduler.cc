// SPDX-License-Identifier: Apache-2.0
#include "engine/scheduler.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/token_constraint.h"
#include "kernels/base/check.h"

namespace diffserve {
namespace {

PrefixIndex::Options Complete(PrefixIndex::Options index_options, const EngineOptions& options) {
  index_options.num_pages = options.num_pages;
  index_options.page_size = options.page_size;
  return index_options;
}

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

Status CheckFits(const EngineOptions& options, const Request& request) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t wanted = prompt + request.max_tokens;
  if (prompt == 0)
    return InvalidArgument("the prompt is empty; at least one token is needed", "prompt");
  const bool needs_no_output = request.sampling.prompt_logprobs >= 0 || !request.observers.empty();
  if (request.max_tokens < 0 || (request.max_tokens == 0 && !needs_no_output)) {
    return InvalidArgument(
        "max_tokens is " + std::to_string(request.max_tokens) +
            "; it must be at least 1, or 0 if log-probabilities of the prompt are asked for",
        "max_tokens");
  }
  if (wanted > options.max_model_len) {
    return InvalidArgument(
        "the maximum context length is " + std::to_string(options.max_model_len) + " tokens, but " +
            std::to_string(wanted) + " were requested (" + std::to_string(prompt) +
            " in the prompt, " + std::to_string(request.max_tokens) + " in max_tokens)",
        prompt >= options.max_model_len ? "prompt" : "max_tokens");
  }
  const int64_t pages = PagesFor(MaxCachedTokens(request), options.page_size);
  if (pages > options.num_pages) {
    return InvalidArgument(
        "the KV cache holds " + std::to_string(int64_t{options.num_pages} * options.page_size) +
            " tokens, but " + std::to_string(wanted) + " were requested (" +
            std::to_string(prompt) + " in the prompt, " + std::to_string(request.max_tokens) +
            " in max_tokens)",
        PagesFor(prompt, options.page_size) > options.num_pages ? "prompt" : "max_tokens");
  }
  return Status();
}

Scheduler::Scheduler(const EngineOptions& options, PrefixIndex::Options index_options,
                     PageTier* tier)
    : options_(options),
      max_running_(options.MaxRunning()),
      pool_(options.num_pages),
      index_(Complete(index_options, options)),
      states_(options),
      draft_pages_(options.num_pages, options.page_size),
      tier_(tier) {
  DS_CHECK(max_running_ > 0 && options.page_size > 0 && options.max_model_len > 0,
           "every size of the engine is positive");
  if (options.speculative_history_bytes > 0) history_.emplace(options.speculative_history_bytes);
}

void Scheduler::Add(Request request) {
  DS_CHECK(CheckFits(options_, request).ok(), "admission has checked that the request fits");
  auto sequence = std::make_unique<Sequence>(std::move(request), options_.page_size);
  if (options_.speculative_tokens > 0) {
    sequence->proposer.emplace(options_.speculative_tokens, sequence->request.prompt,
                               sequence->request.prediction);
  }
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
  Remember(*it->second, finish);
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
  } else if (!EndLoading(sequence)) {
    queue_.Remove(sequence);
  }
  queue_.Leave(client);
}

int Scheduler::free_seats() const {
  return short_of_pages_ ? 0 : max_running_ - static_cast<int>(running_.size());
}

Scheduler::Budget Scheduler::NewBudget() const {
  const auto decodes = std::ranges::count_if(
      running_, [](const auto& s) { return s->num_remaining() == 1 && s->share > 0; });
  const auto prompts = std::ranges::count_if(running_,
                                             [](const auto& s) { return s->num_remaining() > 1; });
  Budget budget;
  budget.tokens = options_.max_num_batched_tokens - static_cast<int>(decodes);
  budget.half = std::max(1, budget.tokens / 2);
  budget.others_wait = prompts + queue_.num_waiting() > 1;
  return budget;
}

StepPlan Scheduler::Plan() {
  DS_CHECK(HasWork() && due_.size() < 2, "there is something to plan, at most one step ahead");
  DS_CHECK(due_.empty() || options_.speculative_tokens == 0,
           "what is proposed follows known tokens, so nothing is planned ahead");
  StepPlan plan;
  states_.BeginPlan(running_);
  if (MustCommitFirst() || !MakeRoom()) return plan;
  ShareOut();
  Budget budget = NewBudget();
  if (!PlanRunning(budget)) return plan;
  if (shared_out_ && due_.empty() && NothingIsPlanned()) {
    // No sequence with a share finds a page, so those that hold the pages continue.
    LiftShares();
    budget = NewBudget();
    PlanRunning(budget);
  }
  PlanWaiting(budget);
  PlanLeftover(budget);
  PlanProposals();

  std::vector<Sequence*> planned;
  for (const auto& sequence : running_) {
    if (sequence->num_planned > 0) planned.push_back(sequence.get());
  }
  DS_CHECK(!planned.empty() || !due_.empty() || (running_.empty() && num_transferring_ > 0),
           "the oldest sequence always advances");
  if (planned.empty()) return plan;
  std::ranges::stable_partition(planned, [](const Sequence* s) { return s->num_remaining() == 1; });
  counters_.deferrals += budget.deferred ? 1 : 0;
  plan.step = ++step_;
  TakeTurns();
  std::vector<Due>& due = due_.emplace_back();
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

// Plans the running sequences, oldest first. False: pages are short while a plan is not committed.
// Its commit may free some; otherwise the next call preempts a sequence.
bool Scheduler::PlanRunning(Budget& budget) {
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    const bool decodes = sequence.num_remaining() == 1;
    const int wanted = std::min(sequence.share,
                                decodes ? 1 : TokensFor(sequence.num_remaining(), budget));
    while (PagesMissing(sequence, wanted) > pool_.num_available()) {
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
    const int planned = PlanTokens(sequence, wanted);
    if (!decodes) budget.Take(sequence, planned);
    budget.out_of_pages |= planned < wanted;
  }
  return true;
}

void Scheduler::TakeBackPlan() {
  for (const auto& sequence : running_) {
    sequence->num_planned = 0;
    TrimPages(*sequence);
  }
}

void Scheduler::PlanWaiting(Budget& budget) {
  bool has_room = true;
  while (static_cast<int>(running_.size()) < max_running_ && budget.tokens > 0 &&
         !budget.out_of_pages) {
    Sequence* const next = queue_.Next();
    if (next == nullptr) break;
    ClientQueue& client = *next->client;
    const std::vector<int32_t> hits = FindPrefix(*next);
    const int num_hits = static_cast<int>(hits.size());
    const int remaining = next->num_tokens() - num_hits * options_.page_size;
    const int wanted = std::min(TokensFor(remaining, budget), client.tokens_left);
    const bool deferred = wanted > 0 && PrefixIsUnderWay(*next, num_hits, wanted);
    if (wanted == 0 || deferred) {
      budget.deferred |= deferred;
      client.passed_over = true;
      continue;
    }
    has_room = HasRoomFor(*next, hits);
    if (!has_room) {
      StopKeeping();
      break;
    }
    if (StartLoad(*next, num_hits)) continue;
    Sequence& head = Admit(hits);
    head.share = std::min(head.share, client.tokens_left);
    const int planned = PlanTokens(head, wanted);
    client.tokens_left -= shared_out_ ? planned : 0;
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
    budget.tokens -= PlanTokens(*sequence, wanted);
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
  head.share = kUnlimited;
  head.last_turn = step_;  // so that its turn comes after those of the running sequences
  for (int32_t page : hits) pool_.Share(page);
  head.pages = hits;
  head.client->num_pages += std::ssize(hits);
  head.num_indexed_pages = static_cast<int>(hits.size());
  head.num_computed = head.num_committed = head.num_indexed_pages * options_.page_size;
  states_.Begin(head, hits.empty() ? -1 : hits.back());
  if (!head.admitted_before) {
    head.admitted_before = true;
    head.cached_tokens = std::min(head.num_computed, head.num_prompt_tokens());
    head.loaded_tokens = std::max(
        0, std::min(head.cached_tokens, head.loaded_end) - head.loaded_begin);
    CountPrefix(head, head.num_indexed_pages);
  }
  return head;
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
  planned.pages = sequence.pages;
  planned.states = states_.PlanStep(sequence);
  planned.draft = std::exchange(sequence.draft, {});
  draft_pages_.Take(sequence, planned.draft);
  planned.window_pages = sequence.state.window_pages;
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
  for (size_t i = 0; i < due.size(); ++i) {
    const auto it = by_id_.find(due[i].request);
    if (it == by_id_.end()) continue;  // it has ended since the plan
    Sequence& sequence = *it->second;
    TokenEvent event = CommitSequence(sequence, due[i], result[i]);
    const bool ended = event.finish != FinishReason::kNone;
    if (ended) {
      Remember(sequence, event.finish);
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
  if (!finite || !result.observed.ok()) {
    ForgetContent(sequence);
    ++counters_.corrupted;
    event.finish = FinishReason::kError;
    event.error = finite ? result.observed
                         : Status(StatusCode::kInternal,
                                  "the model produced non-finite logits" + result.non_finite_hint);
    return event;
  }
  TakePromptScores(sequence, due.end, result, event);
  const int rejected = TakeDraws(sequence, due, result, event);
  event.prediction = sequence.prediction_use;
  sequence.num_committed = due.end - rejected;
  if (rejected > 0) draft_pages_.Cut(sequence, sequence.num_committed);
  IndexFullPages(sequence);
  states_.Commit(sequence, index_);
  if (due.end == MaxCachedTokens(sequence.request) && due.samples == 0)
    event.finish = FinishReason::kLength;  // max_tokens is 0: only the prompt is computed
  return event;
}

// `end`: the position after the step's tokens.
void Scheduler::TakePromptScores(Sequence& sequence, int end, const SequenceResult& result,
                                 TokenEvent& event) const {
  if (!sequence.wants_prompt_scores()) return;
  const int scored = sequence.num_prompt_tokens() - 1;
  const int expected = std::max(0, std::min(end, scored) - sequence.num_committed);
  DS_CHECK(static_cast<int>(result.prompt_scores.size()) == expected,
           "one score for each planned token that a prompt token follows");
  sequence.prompt_scores.insert(sequence.prompt_scores.end(), result.prompt_scores.begin(),
                                result.prompt_scores.end());
  if (end < sequence.num_prompt_tokens()) return;
  event.prompt_logprobs = std::move(sequence.prompt_scores);
  sequence.prompt_scores.clear();
  sequence.prompt_scored = true;
}

void Scheduler::TakeToken(Sequence& sequence, int position, const SampleResult& sample,
                          TokenEvent& event) {
  const Request& request = sequence.request;
  const int num_outputs = position + 1 - sequence.num_prompt_tokens();
  sequence.tail[static_cast<size_t>(position - sequence.prompt_pages_end)] = sample.token;
  event.tokens.push_back(sample.token);
  if (request.sampling.num_logprobs >= 0) event.logprobs.push_back(sample);
  const auto is_in = [&](const std::vector<int32_t>& ids) {
    return std::ranges::find(ids, sample.token) != ids.end();
  };
  if (num_outputs > request.sampling.min_tokens) {
    if (!request.sampling.ignore_eos && is_in(request.eos_token_ids)) {
      event.finish = FinishReason::kStop;
      return;
    }
    if (is_in(request.sampling.stop_token_ids)) {
      event.finish = FinishReason::kStop;
      event.stop_token = sample.token;
      return;
    }
  }
  if (num_outputs >= request.max_tokens) {
    event.finish = FinishReason::kLength;
  } else if (request.constraint != nullptr) {
    if (Status status = request.constraint->Accept(sample.token); !status.ok())
      EndByConstraint(std::move(status), event);
  }
}

void Scheduler::EndByConstraint(Status error, TokenEvent& event) {
  const bool is_limit = error.code() == StatusCode::kInternal;
  counters_.constraints_failed += is_limit ? 1 : 0;
  event.finish = is_limit ? FinishReason::kLength : FinishReason::kError;
  event.error = std::move(error);
}

}  // namespace diffserve
