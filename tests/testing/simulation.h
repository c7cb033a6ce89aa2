// Simulation: the real Scheduler, PagePool and PrefixIndex with a FakeExecutor, without threads or
// clock. A seed decides everything: sizes of the engine, arrivals, cancellations, faults. After
// each step the thirteen invariants below are checked; Run returns the first violation in words, or
// nothing.
//
//  1. free + in use + cached = all pages          7. the oldest running sequence advances in every
//     step
//  2. holders of a page = sequences that list it  8. it is never preempted, preemptions are
//     bounded, what fits is admitted
//  3. what has ended holds no page                9. first come, first served
//  4. a shared page is never written             10. a prefix hit has the same salt and the same
//     tokens
//  5. page table length = ceil(tokens / size)    11. exactly one terminal event for each request,
//     nothing after it
//  6. rows, sequences and pages within limits    12. the output of a sequence = its output when it
//     runs alone
//                                                13. who follows the KV events knows the pages of
//                                                    the prefix index
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/scheduler.h"
#include "tests/testing/fake_executor.h"

namespace diffserve::testing {

class Simulation {
 public:
  // What came of a request; it does not depend on `depth`.
  struct Outcome {
    std::vector<int32_t> tokens;
    std::vector<float> logprobs, prompt_logprobs;
    FinishReason finish = FinishReason::kNone;
    int32_t stop_token = -1;
    std::string error;
    bool operator==(const Outcome&) const = default;
  };

  // `depth`: steps launched and not committed, as in Executor. Request number i is the same for
  // every depth.
  Simulation(uint64_t seed, int depth)
      : seed_(seed),
        depth_(depth),
        dice_{std::mt19937_64(seed)},
        options_(RandomOptions()),
        scheduler_(options_, RandomIndexOptions()),
        executor_(options_, ExecutorOptions()) {
    for (int i = 0; i < 4; ++i) families_.push_back(dice_.Tokens(options_.max_model_len));
    busyness_ = dice_.Pick(1, 60);
    if (dice_.Chance(30)) penalty_percent_ = 15;
  }

  // `arriving_steps` steps with arrivals and cancellations, then as many as it takes to finish what
  // is left.
  std::string Run(int arriving_steps) {
    for (int step = 0; step < arriving_steps && violation_.empty(); ++step) {
      while (dice_.Chance(busyness_) && live() < 40) Arrive();
      if (dice_.Chance(6)) CancelOne();
      Turn();
    }
    const int64_t limit = 100000;
    for (int64_t step = 0; (scheduler_.HasWork() || !launched_.empty()) && violation_.empty();
         ++step) {
      Turn();
      Require(step < limit, "7: the work ends");
    }
    Require(live() == 0, "11: every request has ended");
    Require(scheduler_.pool().num_in_use() == 0, "3: no page is in use after the last request");
    Require(executor_.num_sequences() == 0,
            "11: the executor holds nothing after the last request");
    return violation_;
  }

  const EngineOptions& options() const { return options_; }
  const SchedulerCounters& counters() const { return scheduler_.counters(); }
  uint64_t finished() const { return finished_; }
  uint64_t cancelled() const { return cancelled_; }
  uint64_t corrupted() const { return corrupted_; }
  uint64_t steps_launched_ahead() const { return steps_launched_ahead_; }
  uint64_t results_dropped() const { return results_dropped_; }
  uint64_t kv_events() const { return kv_events_; }
  // Of the requests that were not cancelled.
  const std::map<RequestId, Outcome>& outcomes() const { return outcomes_; }

 private:
  static constexpr int kVocab = 40;
  struct Dice {
    std::mt19937_64 random;
    int Pick(int low, int high) {
      return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
    }
    bool Chance(int percent) { return Pick(1, 100) <= percent; }
    std::vector<int32_t> Tokens(int count) {
      std::vector<int32_t> tokens(count);
      for (int32_t& token : tokens) token = Pick(0, kVocab - 1);
      return tokens;
    }
  };
  struct Record {
    Request request;
    std::vector<int32_t> expected;
    Outcome outcome;
    bool has_scores = false;
    bool started = false;
    int corrupt_position = -1;
  };

  // --- Random choices ---
  EngineOptions RandomOptions() {
    EngineOptions options;
    options.page_size = 1 << dice_.Pick(0, 4);
    options.num_pages = dice_.Pick(3, 40);
    const int slots = options.page_size * options.num_pages;
    options.max_model_len = std::max(4, dice_.Chance(50) ? slots : dice_.Pick(4, 2 * slots));
    options.max_num_seqs = dice_.Pick(1, 12);
    options.max_num_batched_tokens = dice_.Chance(30) ? dice_.Pick(1, 8) : dice_.Pick(8, 100);
    options.enable_prefix_caching = dice_.Chance(85);
    options.max_preemptions_per_sequence = dice_.Pick(0, 4);
    return options;
  }
  PrefixIndex::Options RandomIndexOptions() {
    PrefixIndex::Options options;
    options.hash_key = dice_.random();
    options.record_events = true;
    if (dice_.Chance(25))
      options.hash_mask = (1u << dice_.Pick(1, 6)) - 1;  // almost every lookup collides
    return options;
  }
  FakeExecutor::Options ExecutorOptions() {
    FakeExecutor::Options options;
    options.vocab_size = kVocab;
    options.depth = depth_;
    options.is_corrupt = [this](RequestId id, int position) {
      return records_.at(id).corrupt_position == position;
    };
    return options;
  }

  Request RandomRequest(Dice& dice) {
    Request request;
    const int longest = std::max(
        1, std::min(options_.max_model_len, options_.page_size * options_.num_pages) /
               dice.Pick(1, 6));
    request.prompt = families_[dice.Pick(0, 3)];
    request.prompt.resize(dice.Pick(1, longest));
    if (dice.Chance(60)) {
      const int own = dice.Pick(0, static_cast<int>(request.prompt.size()) / 2);
      const std::vector<int32_t> suffix = dice.Tokens(own);
      std::copy(suffix.begin(), suffix.end(), request.prompt.end() - own);
    }
    request.max_tokens = dice.Pick(1, std::max(1, longest));
    request.sampling.temperature = dice.Chance(30) ? 0.0f : 1.0f;
    request.sampling.seed = dice.Pick(0, 3);
    if (dice.Chance(penalty_percent_)) request.sampling.presence_penalty = 1.0f;
    if (dice.Chance(20)) request.sampling.num_logprobs = dice.Pick(0, 3);
    if (dice.Chance(10)) request.prompt_logprobs = dice.Pick(0, 2);
    if (request.prompt_logprobs >= 0 && dice.Chance(50)) request.max_tokens = 0;
    if (dice.Chance(60)) request.eos_token_ids = {3, 5};
    if (dice.Chance(30)) request.stop_token_ids = {7};
    if (dice.Chance(20)) request.ignore_eos = true;
    if (dice.Chance(20)) request.min_tokens = dice.Pick(0, request.max_tokens);
    if (dice.Chance(25)) request.cache_salt = "tenant";
    return request;
  }

  // --- What happens ---
  void Arrive() {
    Dice dice{std::mt19937_64(seed_ * 1000003 + arrivals_++)};
    const Request model = RandomRequest(dice);
    const int continuations = dice.Chance(15) ? dice.Pick(2, 4) : 1;
    for (int i = 0; i < continuations; ++i) {
      Record record;
      record.request = model;
      record.request.id = ++last_id_;
      record.request.sequence = i;
      const int64_t tokens = static_cast<int64_t>(model.prompt.size()) + model.max_tokens;
      const int64_t slots = int64_t{options_.page_size} * options_.num_pages;
      const bool fits = tokens <= options_.max_model_len && MaxCachedTokens(model) <= slots;
      Require(CheckFits(options_, record.request).ok() == fits,
              "admission refuses exactly what cannot fit");
      if (!fits || !violation_.empty()) return;
      record.expected = FakeExecutor::Continue(record.request, kVocab);
      if (dice.Chance(3))
        record.corrupt_position = dice.Pick(
            1, static_cast<int>(model.prompt.size()) + model.max_tokens);
      const Request request = record.request;
      records_.emplace(request.id, std::move(record));
      scheduler_.Add(request);
    }
  }

  void CancelOne() {
    if (records_.empty()) return;
    const bool known = dice_.Chance(90);
    const RequestId id = known ? std::next(records_.begin(), dice_.Pick(0, live() - 1))->first
                               : RequestId{last_id_ + 1000};
    const auto event = scheduler_.End(id, FinishReason::kCancelled, Status());
    Require(event.has_value() == records_.contains(id),
            "11: a live request can be cancelled, an unknown one is ignored");
    if (event) TakeEvent(*event);
    LetGo();
  }

  // As the engine's loop: another step is launched if there is one, and then the oldest one is
  // committed if `depth_` are launched or none could be added.
  void Turn() {
    const size_t steps_before = launched_.size();
    try {
      if (scheduler_.HasWork()) Launch();
      const bool added = launched_.size() > steps_before;
      if (!launched_.empty() && (!added || static_cast<int>(launched_.size()) == depth_)) Commit();
    } catch (const std::logic_error& error) {
      Require(false, error.what());
    }
  }

  void Launch() {
    const RequestId oldest = scheduler_.running().empty()
                                 ? 0
                                 : scheduler_.running().front()->request.id;
    const SchedulerCounters counters = scheduler_.counters();
    const StepPlan plan = scheduler_.Plan();
    CheckState();
    if (plan.sequences.empty()) {
      Require(!launched_.empty(), "7: a plan is empty only while a step is not committed");
      Require(scheduler_.counters().deferrals == counters.deferrals, "only steps are counted");
      return;
    }
    Require(plan.step == ++steps_, "steps are numbered one by one");
    CheckPlan(plan);
    CheckService(plan, oldest, counters);
    for (const PlannedSequence& planned : plan.sequences) {
      Record& record = records_.at(planned.request);
      Require(planned.first_step == !std::exchange(record.started, true),
              "the first step of a sequence is marked");
      if (planned.first_step) executor_.Begin(record.request);
    }
    executor_.Launch(plan);
    if (!launched_.empty()) ++steps_launched_ahead_;
    launched_.push_back(plan);
  }

  void Commit() {
    const StepPlan plan = std::move(launched_.front());
    launched_.pop_front();
    for (const PlannedSequence& planned : plan.sequences) CountWaste(planned);
    std::map<RequestId, int32_t> first_pages;  // of the sequences that have one in the index
    for (const auto& sequence : scheduler_.running()) {
      if (sequence->num_indexed_pages > 0) first_pages[sequence->request.id] = sequence->pages[0];
    }
    for (const TokenEvent& event : scheduler_.Commit(executor_.Collect())) {
      const auto is_it = [&](const PlannedSequence& planned) {
        return planned.request == event.request;
      };
      Require(std::ranges::any_of(plan.sequences, is_it), "an event comes from a planned sequence");
      if (event.finish == FinishReason::kError && first_pages.contains(event.request)) {
        Require(!scheduler_.index().Contains(first_pages[event.request]),
                "10: pages of broken logits are not in the index");
      }
      TakeEvent(event);
    }
    LetGo();
    CheckState();
  }

  // A request that ends by itself wastes the row that was planned ahead, a cancelled or broken one
  // what was launched already.
  void CountWaste(const PlannedSequence& planned) {
    const auto it = leaving_.find(planned.request);
    if (it == leaving_.end()) return;
    ++results_dropped_;
    Require(++it->second == 1, "one step at most computes for a request that has ended");
    const auto outcome = outcomes_.find(planned.request);
    if (outcome == outcomes_.end() || outcome->second.finish == FinishReason::kError) return;
    Require(planned.num_planned == 1, "a request that ends by itself wastes one row at most");
    Require(outcome->second.finish == FinishReason::kStop, "an end by count is known before");
  }

  // The executor keeps what it has of a request until no step contains it.
  void LetGo() {
    std::erase_if(leaving_, [&](const auto& leaving) {
      for (const StepPlan& plan : launched_) {
        for (const PlannedSequence& planned : plan.sequences) {
          if (planned.request == leaving.first) return false;
        }
      }
      executor_.End(leaving.first);
      return true;
    });
  }

  // --- Invariants ---
  bool Require(bool condition, const std::string& what) {
    if (!condition && violation_.empty()) violation_ = what;
    return condition;
  }

  // 4, 5, 6, 7.
  void CheckPlan(const StepPlan& plan) {
    Require(plan.num_rows() >= 1 && plan.num_rows() <= options_.max_num_batched_tokens,
            "6: rows within the limit");
    Require(static_cast<int>(scheduler_.running().size()) <= options_.max_num_seqs,
            "6: sequences within the limit");
    for (const PlannedSequence& planned : plan.sequences) {
      const int64_t end = int64_t{planned.num_computed} + planned.num_planned;
      Require(static_cast<int64_t>(planned.pages.size()) == PagesFor(end, options_.page_size),
              "5: page table length");
      for (size_t i = planned.num_computed / options_.page_size; i < planned.pages.size(); ++i) {
        Require(scheduler_.pool().holders(planned.pages[i]) == 1 &&
                    !scheduler_.index().Contains(planned.pages[i]),
                "4: a page that others see is not written");
      }
    }
    for (const PlannedSequence& planned : plan.sequences) {
      const Record& record = records_.at(planned.request);
      const int64_t end = int64_t{planned.num_computed} + planned.num_planned;
      Require(end <= MaxCachedTokens(record.request), "what is certain to end is not planned");
    }
    const Sequence& oldest = *scheduler_.running().front();
    const bool all_is_planned = oldest.num_committed < oldest.num_computed &&
                                oldest.num_remaining() == 0;
    const bool advances = std::ranges::any_of(
        plan.sequences, [&](const auto& s) { return s.request == oldest.request.id; });
    Require(advances || all_is_planned, "7: the oldest sequence advances");
  }

  // 8 and 9, after Plan.
  void CheckService(const StepPlan& plan, RequestId oldest, const SchedulerCounters& before) {
    if (oldest != 0)
      Require(scheduler_.running().front()->request.id == oldest,
              "8: the oldest running sequence stays");
    RequestId last = 0;  // ids go up in order of arrival
    const auto check_order = [&](const Sequence& sequence) {
      Require(sequence.request.id > last, "9: first come, first served");
      last = sequence.request.id;
    };
    int64_t pages_at_end = 0;
    for (const auto& sequence : scheduler_.running()) {
      check_order(*sequence);
      pages_at_end += PagesFor(MaxCachedTokens(sequence->request), options_.page_size);
    }
    for (const auto& sequence : scheduler_.waiting()) {
      check_order(*sequence);
      Require(sequence->preemptions <= options_.max_preemptions_per_sequence,
              "8: preemptions are bounded");
    }
    if (scheduler_.waiting().empty()) return;
    pages_at_end += PagesFor(MaxCachedTokens(scheduler_.waiting().front()->request),
                             options_.page_size);
    const bool has_room = pages_at_end <= options_.num_pages &&
                          plan.num_rows() < options_.max_num_batched_tokens &&
                          static_cast<int>(scheduler_.running().size()) <
                              std::min(options_.max_num_seqs, options_.max_num_batched_tokens);
    const bool deferred = scheduler_.counters().deferrals > before.deferrals;
    const bool preempted = scheduler_.counters().preemptions > before.preemptions;
    Require(!has_room || deferred || preempted, "8: what fits is admitted");
    const RequestId head = scheduler_.waiting().front()->request.id;
    steps_deferred_ = deferred && std::exchange(last_head_, head) == head ? steps_deferred_ + 1 : 0;
    Require(steps_deferred_ <= options_.max_model_len,
            "8: nobody waits for a prefix longer than it takes to compute it");
  }

  // 1, 2, 3 from outside, and the scheduler's own checks.
  void CheckState() {
    std::map<int32_t, int> holders;
    for (const auto& sequence : scheduler_.running()) {
      Require(records_.contains(sequence->request.id), "3: only live sequences run");
      std::set<int32_t> own(sequence->pages.begin(), sequence->pages.end());
      Require(own.size() == sequence->pages.size(), "2: a sequence lists a page once");
      for (int32_t page : own) ++holders[page];
    }
    const PagePool& pool = scheduler_.pool();
    const int in_use = static_cast<int>(holders.size());
    Require(pool.num_free() + pool.num_cached() + in_use == options_.num_pages,
            "1: all pages are there");
    for (const auto& [page, count] : holders)
      Require(pool.holders(page) == count, "2: holders are counted");
    for (const StepPlan& plan : launched_) {
      for (const PlannedSequence& planned : plan.sequences) {
        for (size_t i = planned.num_computed / options_.page_size; i < planned.pages.size(); ++i) {
          Require(
              pool.holders(planned.pages[i]) <= 1 && !scheduler_.index().Contains(planned.pages[i]),
              "4: a page that a launched step writes is not shared, and not in the index, even if "
              "its sequence has ended");
        }
      }
    }
    scheduler_.CheckInvariants();
    FollowKvEvents();
  }

  // 13.
  void FollowKvEvents() {
    const auto page_size = static_cast<size_t>(options_.page_size);
    for (const KvEvent& event : scheduler_.TakeKvEvents()) {
      ++kv_events_;
      std::optional<uint64_t> parent = event.parent;
      for (size_t i = 0; i < event.hashes.size(); ++i) {
        const uint64_t hash = event.hashes[i];
        if (event.kind == KvEvent::Kind::kRemoved) {
          const auto hangs_on_it = [&](const auto& entry) { return entry.second.parent == hash; };
          Require(known_pages_.erase(hash) == 1, "13: what is removed was there");
          Require(std::ranges::none_of(known_pages_, hangs_on_it),
                  "13: the end of a chain leaves first");
          continue;
        }
        Require(!parent || known_pages_.contains(*parent),
                "13: what is stored hangs on what is there");
        const auto begin = event.tokens.begin() + static_cast<ptrdiff_t>(i * page_size);
        KnownPage page{parent,
                       {begin, begin + options_.page_size},
                       parent ? known_pages_[*parent].salt : event.salt};
        Require(known_pages_.emplace(hash, std::move(page)).second, "13: a page is stored once");
        parent = hash;
      }
      Require(event.tokens.size() ==
                  (event.kind == KvEvent::Kind::kStored ? event.hashes.size() * page_size : 0),
              "13: tokens a page");
    }
    Require(static_cast<int>(known_pages_.size()) == scheduler_.index().size(),
            "13: as many pages are known as are in the index");
    for (const auto& sequence : scheduler_.running()) {
      if (sequence->num_indexed_pages == 0 || !scheduler_.index().Contains(sequence->pages[0]))
        continue;
      for (size_t i = 0; i < static_cast<size_t>(sequence->num_indexed_pages); ++i) {
        const auto known = known_pages_.find(sequence->page_hashes[i]);
        if (!Require(known != known_pages_.end(), "13: indexed pages are known")) return;
        const auto tokens = sequence->tokens.begin() + static_cast<ptrdiff_t>(i * page_size);
        Require(std::ranges::equal(known->second.tokens, std::span(tokens, page_size)),
                "13: with their tokens");
        Require(known->second.salt == sequence->request.cache_salt, "13: with their salt");
      }
    }
  }

  // 11 and 12.
  void TakeEvent(const TokenEvent& event) {
    const auto it = records_.find(event.request);
    if (!Require(it != records_.end(), "11: no event after the terminal one")) return;
    Record& record = it->second;
    std::vector<int32_t>& outputs = record.outcome.tokens;
    outputs.insert(outputs.end(), event.tokens.begin(), event.tokens.end());
    for (const SampleResult& sample : event.logprobs)
      record.outcome.logprobs.push_back(sample.logprob);
    for (const SampleResult& sample : event.prompt_logprobs)
      record.outcome.prompt_logprobs.push_back(sample.logprob);
    Require(outputs.size() <= record.expected.size() &&
                std::equal(outputs.begin(), outputs.end(), record.expected.begin()),
            "12: the output is that of a run alone");
    if (record.request.sampling.num_logprobs >= 0) {
      Require(event.logprobs.size() == event.tokens.size(), "12: each token has its logprob");
    }
    CheckScores(record, event);
    if (event.finish == FinishReason::kNone) return;
    CheckEnd(record, event);
    record.outcome.finish = event.finish;
    record.outcome.stop_token = event.stop_token;
    record.outcome.error = event.error.message();
    if (event.finish != FinishReason::kCancelled)
      outcomes_.emplace(event.request, std::move(record.outcome));
    if (record.started) leaving_.emplace(event.request, 0);
    records_.erase(it);
  }

  void CheckScores(Record& record, const TokenEvent& event) {
    if (!event.prompt_logprobs.empty()) {
      const std::vector<float> expected = FakeExecutor::PromptScores(record.request);
      Require(!std::exchange(record.has_scores, true), "11: prompt logprobs come once");
      Require(event.prompt_logprobs.size() == expected.size() &&
                  std::equal(expected.begin(), expected.end(), event.prompt_logprobs.begin(),
                             [](float score, const SampleResult& result) {
                               return score == result.logprob;
                             }),
              "12: prompt logprobs are those of a run alone");
    }
    const bool due = record.request.prompt_logprobs >= 0 && record.request.prompt.size() > 1;
    Require(event.tokens.empty() || record.has_scores == due,
            "11: prompt logprobs come before or with the first token");
  }

  void CheckEnd(const Record& record, const TokenEvent& event) {
    const Request& request = record.request;
    switch (event.finish) {
      case FinishReason::kCancelled:
        ++cancelled_;
        return;
      case FinishReason::kError:
        Require(record.corrupt_position > 0 && event.error.code() == StatusCode::kInternal,
                "an error has a cause");
        Require(record.corrupt_position ==
                        static_cast<int>(request.prompt.size() + record.outcome.tokens.size()) ||
                    (request.prompt_logprobs >= 0 &&
                     record.corrupt_position < static_cast<int>(request.prompt.size())),
                "an error comes where its cause is");
        ++corrupted_;
        return;
      default:
        break;
    }
    Require(record.outcome.tokens == record.expected, "12: the output is complete");
    const bool at_limit = static_cast<int>(record.outcome.tokens.size()) == request.max_tokens;
    Require(event.finish == FinishReason::kStop || at_limit,
            "finish_reason length means max_tokens were generated");
    ++finished_;
  }

  int live() const { return static_cast<int>(records_.size()); }

  const uint64_t seed_;
  const int depth_;
  Dice dice_;  // for what happens between requests
  const EngineOptions options_;
  Scheduler scheduler_;
  FakeExecutor executor_;
  std::vector<std::vector<int32_t>> families_;  // token runs that prompts begin with
  int busyness_ = 0;
  int penalty_percent_ = 0;
  std::map<RequestId, Record> records_;  // live requests
  RequestId last_id_ = 0;
  uint64_t arrivals_ = 0;
  uint64_t steps_ = 0;
  int steps_deferred_ = 0;
  RequestId last_head_ = 0;
  uint64_t finished_ = 0, cancelled_ = 0, corrupted_ = 0, steps_launched_ahead_ = 0,
           results_dropped_ = 0;
  std::deque<StepPlan> launched_;     // not committed yet, oldest first
  std::map<RequestId, int> leaving_;  // ended requests that the executor knows -> steps collected
                                      // since
  std::map<RequestId, Outcome> outcomes_;
  struct KnownPage {
    std::optional<uint64_t> parent;
    std::vector<int32_t> tokens;
    std::string salt;
  };
  std::map<uint64_t, KnownPage> known_pages_;  // by chain hash, from the KV events alone
  uint64_t kv_events_ = 0;
  std::string violation_;
};

}  // namespace diffserve::testing
