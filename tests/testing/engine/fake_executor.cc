// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/engine/fake_executor.h"

#include <algorithm>
#include <memory>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "engine/contract/token_constraint.h"
#include "kernels/process/random_bits.h"
#include "models/diagnostics/hidden_state_pool.h"

namespace diffserve::testing {
namespace {

void Require(bool condition, const char* what) {
  if (!condition) throw std::logic_error(std::string("illegal plan: ") + what);
}

uint64_t Chain(uint64_t before, int32_t token) {
  return SplitMix64(SplitMix64(before) + static_cast<uint32_t>(token));
}

// The cache salt is part of every chain, so that a page taken from another salt is noticed.
uint64_t Root(const Request& request) {
  uint64_t chain = 0x1234567;
  for (unsigned char c : request.cache_salt) chain = Chain(chain, c);
  return chain;
}

float Score(uint64_t chain, int32_t token) {
  return -static_cast<float>(Chain(chain, token) % 1000) / 64.0f;
}

// Draws a token. Seven of eight depend only on the token `before`, so that an output repeats
// itself like text but sometimes changes course. `mask`: nullptr, or the allowed tokens, at least
// one.
SampleResult Draw(uint64_t chain, const Request& request, int position, int32_t before,
                  const std::vector<int32_t>& banned, int vocab_size, const uint32_t* mask) {
  const SamplingParams& sampling = request.sampling;
  uint64_t key = chain;
  if (sampling.temperature > 0)
    key = SplitMix64(SplitMix64(chain + sampling.seed) + request.sequence * 4099 + position);
  if (SplitMix64(key) % 8 != 0) key = static_cast<uint64_t>(before) * 5 + 7;
  SampleResult sample;
  sample.token = static_cast<int32_t>(key % vocab_size);
  const auto is_out = [&] {
    return std::ranges::find(banned, sample.token) != banned.end() ||
           (mask != nullptr && !MaskHas(mask, sample.token));
  };
  for (int tried = 0; tried < vocab_size && is_out(); ++tried)
    sample.token = (sample.token + 1) % vocab_size;
  sample.logprob = Score(chain, sample.token);
  if (sampling.num_logprobs > 0)
    sample.top_logprobs.assign(sampling.num_logprobs, {sample.token, sample.logprob});
  return sample;
}

std::vector<int32_t> BannedByWords(const Request& request, const std::vector<int32_t>& outputs) {
  std::vector<int32_t> banned;
  if (request.bad_words == nullptr) return banned;
  for (const std::vector<int32_t>& word : *request.bad_words) {
    const size_t before = word.size() - 1;
    if (outputs.size() >= before &&
        std::equal(word.begin(), word.end() - 1, outputs.end() - static_cast<ptrdiff_t>(before)))
      banned.push_back(word.back());
  }
  return banned;
}

}  // namespace

FakeExecutor::FakeExecutor(const EngineOptions& engine_options, Options options)
    : page_size_(engine_options.page_size),
      max_tokens_(engine_options.max_num_batched_tokens),
      max_sequences_(engine_options.max_num_seqs),
      options_(std::move(options)),
      masks_(options_.vocab_size),
      window_(engine_options.window),
      slots_(static_cast<size_t>(engine_options.num_pages) * engine_options.page_size, 0),
      draft_slots_(engine_options.draft_cost > 0 ? slots_.size() : 0),
      window_slots_(static_cast<size_t>(engine_options.num_window_pages) *
                    engine_options.page_size),
      states_(static_cast<size_t>(engine_options.num_state_slots)) {}

void FakeExecutor::Launch(const StepPlan& plan_of_scheduler) {
  StepPlan plan = plan_of_scheduler;
  Require(static_cast<int>(launched_.size()) < options_.depth,
          "no more steps are launched than the executor takes");
  Require(!plan.sequences.empty() && plan.num_tokens() <= max_tokens_,
          "a plan has between one token and the limit of a step");
  Require(static_cast<int>(plan.sequences.size()) <= max_sequences_,
          "a plan has no more sequences than may run");
  ++step_;
  CheckWriters(plan);
  CheckStates(plan);
  CheckDraftWriters(plan);
  std::vector<std::vector<int32_t>> guesses;
  for (PlannedSequence& planned : plan.sequences) {
    guesses.push_back(Guesses(planned));
    if (!guesses.back().empty()) planned.proposed = guesses.back();
  }
  for (const PlannedSequence& planned : plan.sequences) CheckAndWrite(planned);
  LaunchedStep step{plan.step, {}};
  masks_.Fill(plan);
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    step.result.push_back(ResultOf(plan.sequences[i], masks_.entries()[i]));
    step.result.back().guesses = std::move(guesses[i]);
  }
  launched_.push_back(std::move(step));
}

StepResult FakeExecutor::Collect() {
  Require(!launched_.empty(), "what is collected was launched");
  LaunchedStep step = std::move(launched_.front());
  launched_.pop_front();
  if (options_.on_collect) options_.on_collect(step.step);
  return std::move(step.result);
}

std::vector<int32_t> FakeExecutor::Continue(const Request& request, int vocab_size, Status* error) {
  std::vector<int32_t> outputs;
  const std::unique_ptr<TokenConstraint> constraint = request.constraint == nullptr
                                                          ? nullptr
                                                          : request.constraint->Clone();
  uint64_t chain = Root(request);
  for (int32_t token : request.prompt) chain = Chain(chain, token);
  while (static_cast<int>(outputs.size()) < request.max_tokens) {
    const bool may_stop = static_cast<int>(outputs.size()) >= request.sampling.min_tokens;
    std::vector<int32_t> stops = request.sampling.stop_token_ids;
    if (!request.sampling.ignore_eos)
      stops.insert(stops.end(), request.eos_token_ids.begin(), request.eos_token_ids.end());
    const int position = static_cast<int>(request.prompt.size() + outputs.size());
    const int32_t before = outputs.empty() ? request.prompt.ids().back() : outputs.back();
    std::vector<uint32_t> mask(MaskWords(vocab_size), ~uint32_t{0});
    const Status status = constraint == nullptr ? Status() : constraint->Fill(mask);
    std::vector<int32_t> banned = BannedByWords(request, outputs);
    if (!may_stop) banned.insert(banned.end(), stops.begin(), stops.end());
    if (request.allowed_tokens != nullptr) {
      for (size_t i = 0; i < mask.size(); ++i) mask[i] &= (*request.allowed_tokens)[i];
    }
    for (int32_t ban : banned) mask[static_cast<size_t>(ban / 32)] &= ~(uint32_t{1} << ban % 32);
    bool any = false;
    for (int32_t token = 0; token < vocab_size; ++token) any |= MaskHas(mask.data(), token);
    if (!status.ok() || !any) {
      const Status nothing = InvalidArgument("nothing is left");
      if (error != nullptr) *error = status.ok() ? nothing : status;
      break;
    }
    const int32_t token =
        Draw(chain, request, position, before, banned, vocab_size, mask.data()).token;
    outputs.push_back(token);
    chain = Chain(chain, token);
    if (std::ranges::find(stops, token) != stops.end()) break;
    if (constraint == nullptr || static_cast<int>(outputs.size()) == request.max_tokens) continue;
    const Status accepted = constraint->Accept(token);
    if (accepted.ok()) continue;
    if (error != nullptr) *error = accepted;
    break;
  }
  return outputs;
}

std::vector<float> FakeExecutor::PromptScores(const Request& request) {
  std::vector<float> scores;
  uint64_t chain = Root(request);
  for (size_t i = 0; i + 1 < request.prompt.size(); ++i) {
    chain = Chain(chain, request.prompt[i]);
    scores.push_back(Score(chain, request.prompt[i + 1]));
  }
  return scores;
}

std::vector<std::span<uint64_t>> FakeExecutor::Content(const TierEntry& entry) {
  const auto size = static_cast<size_t>(page_size_);
  const auto page_of = [&](std::vector<uint64_t>& slots, int32_t page) {
    return std::span(slots).subspan(static_cast<size_t>(page) * size, size);
  };
  if (entry.kind() == TierKind::kPage) return {page_of(slots_, entry.page)};
  std::vector<std::span<uint64_t>> parts;
  for (const int32_t page : entry.snapshot.window_pages)
    parts.push_back(page_of(window_slots_, page));
  parts.push_back(std::span(states_).subspan(static_cast<size_t>(entry.snapshot.slot), 1));
  return parts;
}

uint64_t& FakeExecutor::SlotOf(std::vector<uint64_t>& slots, const PlannedSequence& planned,
                               int position) const {
  return slots.at(static_cast<size_t>(planned.pages[position / page_size_]) * page_size_ +
                  position % page_size_);
}

void FakeExecutor::CheckWriters(const StepPlan& plan) const {
  std::map<int32_t, int> holders;
  for (const PlannedSequence& planned : plan.sequences) {
    for (int32_t page : planned.pages) ++holders[page];
  }
  for (const PlannedSequence& planned : plan.sequences) {
    const auto first = static_cast<size_t>(planned.num_computed / page_size_);
    for (size_t i = first; i < planned.pages.size(); ++i) {
      Require(holders.at(planned.pages[i]) == 1, "a page that is written has one holder");
    }
  }
}

void FakeExecutor::CheckDraftWriters(const StepPlan& plan) const {
  std::map<int32_t, int> users;
  const auto page_of = [&](const PlannedSequence& planned, int position) {
    return planned.pages[static_cast<size_t>(position / page_size_)];
  };
  const auto visit = [&](auto&& take) {
    for (const PlannedSequence& planned : plan.sequences) {
      if (planned.draft.empty()) continue;
      const int end = planned.draft.computed_end();
      for (int position = 0; position < end; position += page_size_) take(planned, position);
    }
  };
  visit([&](const PlannedSequence& planned, int position) { ++users[page_of(planned, position)]; });
  visit([&](const PlannedSequence& planned, int position) {
    Require(
        position + page_size_ <= planned.draft.first || users.at(page_of(planned, position)) == 1,
        "a page that the draft model writes has one user");
  });
}

const std::vector<int32_t>& FakeExecutor::TokensOf(const Request& request) {
  return sequences_.try_emplace(request.id, State{request.prompt.ids()}).first->second.tokens;
}

std::vector<int32_t> FakeExecutor::Guesses(const PlannedSequence& planned) {
  const DraftWork& work = planned.draft;
  const bool is_asked = std::ranges::count(planned.proposed, kGuessedByDraft) > 0;
  Require(is_asked == (work.guesses > 0), "what is to be guessed is left open");
  if (work.empty()) return {};
  const Request& request = *planned.request;
  const std::vector<int32_t>& tokens = TokensOf(request);
  const auto known = static_cast<int>(tokens.size());
  Require(work.first >= 0 && work.first < work.end && work.end <= known,
          "the draft model computes known tokens");
  Require(work.guesses == 0 || (work.end == known && std::ssize(planned.proposed) == work.guesses),
          "it guesses what follows them");
  Require(work.computed_end() <= planned.end(), "it computes no more than the step");
  std::vector<int32_t> guesses;
  uint64_t chain = Root(request);
  int32_t token = 0;
  for (int position = 0; position < work.computed_end(); ++position) {
    token = position < known ? tokens[static_cast<size_t>(position)] : guesses.back();
    chain = Chain(chain, token);
    uint64_t& slot = SlotOf(draft_slots_, planned, position);
    if (position >= work.first) slot = chain;
    Require(slot == chain, "a drafted slot holds this sequence's tokens");
    if (position < work.end - 1 || std::ssize(guesses) == work.guesses) continue;
    const SampleResult drawn = Draw(chain, request, position + 1, token, planned.banned_tokens,
                                    options_.vocab_size, nullptr);
    const bool is_right = static_cast<int>(SplitMix64(~chain) % 100) < options_.right_draft_percent;
    guesses.push_back(is_right ? drawn.token : (drawn.token + 1) % options_.vocab_size);
  }
  return guesses;
}

void FakeExecutor::CheckStates(const StepPlan& plan) const {
  if (states_.empty()) return;
  std::multiset<int32_t> writers, readers, pages;
  for (const PlannedSequence& planned : plan.sequences) {
    const StateSlotUse& use = planned.states;
    writers.insert(use.to);
    if (use.from != use.to) readers.insert(use.from);
    for (const StateSnapshot& snapshot : use.snapshots) {
      writers.insert(snapshot.slot);
      if (snapshot.slot == use.from) readers.erase(readers.find(use.from));  // read before
    }
    for (int32_t page : planned.window_pages) pages.insert(page);
    Require(window_slots_.empty() || planned.window_pages.size() == planned.pages.size(),
            "the page table of windows is as long as the other");
  }
  for (int32_t slot : writers) {
    Require(slot >= 0 && static_cast<size_t>(slot) < states_.size(), "a slot is one of all");
    Require(writers.count(slot) == 1 && !readers.contains(slot),
            "a slot that is written belongs to one sequence");
  }
  for (const PlannedSequence& planned : plan.sequences) {
    const auto first = static_cast<size_t>(planned.num_computed / page_size_);
    for (size_t i = first; i < planned.window_pages.size(); ++i) {
      Require(pages.count(planned.window_pages[i]) == 1,
              "a window page that is written has one holder");
    }
  }
}

void FakeExecutor::TakeState(const PlannedSequence& planned, int position, uint64_t chain) {
  if (states_.empty()) return;
  const StateSlotUse& use = planned.states;
  if (position == planned.num_computed && position > 0) {
    Require(states_.at(static_cast<size_t>(use.from)) == chain,
            "a state is that of this sequence's tokens");
  }
  const int computed = position - planned.num_computed;
  int32_t to = position == planned.end() ? use.to : -1;
  for (const StateSnapshot& snapshot : use.snapshots) {
    Require(snapshot.num_tokens > 0 && snapshot.num_tokens <= planned.num_planned,
            "a snapshot is of the step");
    if (snapshot.num_tokens == computed) to = snapshot.slot;
  }
  if (to >= 0) states_[static_cast<size_t>(to)] = chain;
}

void FakeExecutor::TakeWindowSlot(const PlannedSequence& planned, int position, uint64_t chain) {
  if (window_slots_.empty() || position + window_ <= planned.num_computed) return;
  const int32_t page = planned.window_pages[static_cast<size_t>(position / page_size_)];
  Require(page >= 0, "a page that a window sees is there");
  uint64_t& slot = window_slots_.at(static_cast<size_t>(page * page_size_ + position % page_size_));
  if (position >= planned.num_computed) slot = chain;
  Require(slot == chain, "a window sees this sequence's tokens");
}

void FakeExecutor::CheckAndWrite(const PlannedSequence& planned) {
  const Request& request = *planned.request;
  const std::vector<int32_t>& tokens = TokensOf(request);
  const int end = planned.end();
  const int known = end - static_cast<int>(planned.proposed.size());
  Require(planned.num_computed >= 0 && planned.num_planned > 0 &&
              known <= static_cast<int>(tokens.size()) && planned.num_computed < known,
          "a sequence computes at least one token, and only known and proposed ones");
  CheckTokens(planned);
  Require(static_cast<int64_t>(planned.pages.size()) == PagesFor(end, page_size_),
          "the page table is as long as needed");
  for (int32_t page : planned.pages) {
    Require(page >= 0 && static_cast<size_t>(page) * page_size_ < slots_.size(),
            "a page lies in the pool");
  }
  const bool wants_token = request.max_tokens > 0 && known == static_cast<int>(tokens.size());
  Require(planned.proposed.empty() || wants_token, "what is proposed follows the last known one");
  Require(planned.samples == (wants_token ? end - known + 1 : 0),
          "a token is drawn after the last known one and after each proposed one");
  if (planned.samples > 0) CheckDraw(planned);
  uint64_t chain = Root(request);
  for (int position = 0; position < end; ++position) {
    chain = Chain(chain, position < known ? tokens[position] : planned.proposed[position - known]);
    uint64_t& slot = SlotOf(slots_, planned, position);
    if (position < planned.num_computed) {
      Require(slot == chain, "a computed slot holds this sequence's tokens");
    } else {
      slot = chain;
    }
    TakeWindowSlot(planned, position, chain);
    TakeState(planned, position + 1, chain);
  }
}

void FakeExecutor::CheckTokens(const PlannedSequence& planned) const {
  const State& state = sequences_.at(planned.id());
  for (int position = planned.num_computed; position < planned.end(); ++position) {
    const int32_t token = planned.TokenAt(position);
    if (position >= static_cast<int>(state.tokens.size())) continue;  // proposed
    if (token != kDrawnByStepBefore) {
      Require(token == state.tokens[position], "planned tokens are the sequence's own");
      continue;
    }
    Require(planned.num_planned == 1 && position + 1 == static_cast<int>(state.tokens.size()),
            "only the last token can be unknown");
    Require(state.drawn_in > 0 && state.drawn_in + 1 == step_,
            "an unknown token was drawn by the step before");
    Require(!launched_.empty(), "a token that was collected is known");
  }
}

void FakeExecutor::CheckDraw(const PlannedSequence& planned) const {
  const Request& request = *planned.request;
  const std::span<const int32_t> outputs =
      std::span(sequences_.at(request.id).tokens).subspan(request.prompt.size());
  const bool needs_outputs = request.sampling.uses_penalties() || request.constraint != nullptr ||
                             request.bad_words != nullptr;
  Require(!needs_outputs || std::ranges::equal(planned.outputs, outputs),
          "penalties, constraints and bad words know what was generated");
  const int last = static_cast<int>(outputs.size() + planned.proposed.size());
  Require(planned.banned_tokens.empty() || last < request.sampling.min_tokens,
          "nothing is banned from min_tokens on");
  const bool may_ban = !request.sampling.stop_token_ids.empty() ||
                       (!request.sampling.ignore_eos && !request.eos_token_ids.empty());
  Require(!planned.banned_tokens.empty() || !may_ban ||
              static_cast<int>(outputs.size()) >= request.sampling.min_tokens,
          "what may not end yet is banned");
}

SequenceResult FakeExecutor::ResultOf(const PlannedSequence& planned,
                                      const DrawMasks::Entry& masks) {
  const Request& request = *planned.request;
  State& state = sequences_.at(request.id);
  SequenceResult result;
  result.error = masks.error;
  const auto is_corrupt = [&](int position) {
    return options_.is_corrupt && options_.is_corrupt(request.id, position);
  };
  if (planned.scores_prompt) {
    const int end = std::min(planned.end(), static_cast<int>(request.prompt.size()) - 1);
    for (int position = planned.num_computed; position < end; ++position) {
      SampleResult& score = result.prompt_scores.emplace_back();
      score.token = request.prompt[position + 1];
      score.logprob = Score(SlotOf(slots_, planned, position), score.token);
      score.finite = !is_corrupt(position + 1);
    }
  }
  PoolStates(planned, result);
  // All draws are made, as a device does; only those that the sequence keeps are stored.
  bool is_own = true;
  for (int i = 0; i < planned.samples; ++i) {
    const int position = planned.end() - planned.samples + 1 + i;
    const int32_t before = i == 0 ? state.tokens.back() : planned.proposed[i - 1];
    const bool is_made = i < masks.num_draws;
    const uint32_t* mask = nullptr;
    if (is_made && masks.first >= 0) {
      mask = masks_.words().data() +
             static_cast<size_t>(masks.first + i) * MaskWords(options_.vocab_size);
    }
    SampleResult& sample = result.samples.emplace_back(
        Draw(SlotOf(slots_, planned, position - 1), request, position, before,
             planned.banned_tokens, options_.vocab_size, mask));
    sample.finite = is_made && !is_corrupt(position);
    is_own &= is_made &&
              (i == 0 || (sample.finite && planned.proposed[i - 1] == state.tokens.back()));
    if (is_own) state.tokens.push_back(sample.token);
    state.drawn_in = step_;
  }
  return result;
}

void FakeExecutor::PoolStates(const PlannedSequence& planned, SequenceResult& result) {
  const auto num_tokens = static_cast<int>(planned.request->prompt.size());
  for (const std::shared_ptr<SequenceObserver>& observer : planned.request->observers) {
    auto* const pool = dynamic_cast<HiddenStatePool*>(observer.get());
    if (pool == nullptr) continue;
    const int first = pool->FirstState(planned.num_computed, planned.end(), num_tokens);
    std::vector<float> states;
    for (int position = first; position < planned.end(); ++position) {
      const uint64_t chain = SlotOf(slots_, planned, position);
      for (int i = 0; i < pool->hidden_size(); ++i) states.push_back(Score(chain, i));
    }
    if (first < planned.end()) pool->OnStates(first, num_tokens, states);
    result.observed = pool->status();
  }
}

}  // namespace diffserve::testing
