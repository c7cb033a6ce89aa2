// Simulation: the real Scheduler, PagePool and PrefixIndex with a FakeExecutor, without threads or clock. A seed decides
// everything: sizes of the engine, arrivals, cancellations, faults. After each step the twelve invariants below are checked; Run
// returns the first violation in words, or nothing.
//
//  1. free + in use + cached = all pages          7. the oldest running sequence advances in every step
//  2. holders of a page = sequences that list it  8. it is never preempted, preemptions are bounded, what fits is admitted
//  3. what has ended holds no page                9. first come, first served
//  4. a shared page is never written             10. a prefix hit has the same salt and the same tokens
//  5. page table length = ceil(tokens / size)    11. exactly one terminal event for each request, nothing after it
//  6. rows, sequences and pages within limits    12. the output of a sequence = its output when it runs alone
#pragma once

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/scheduler.h"
#include "tests/testing/fake_executor.h"

namespace diffserve::testing {

class Simulation {
 public:
  explicit Simulation(uint64_t seed)
      : random_(seed),
        options_(RandomOptions()),
        scheduler_(options_, RandomIndexOptions()),
        executor_(options_, ExecutorOptions()) {
    for (int i = 0; i < 4; ++i) families_.push_back(RandomTokens(options_.max_model_len));
    busyness_ = Pick(1, 60);
  }

  // `arriving_steps` steps with arrivals and cancellations, then as many as it takes to finish what is left.
  std::string Run(int arriving_steps) {
    for (int step = 0; step < arriving_steps && violation_.empty(); ++step) {
      while (Chance(busyness_) && live() < 40) Arrive();
      if (Chance(6)) CancelOne();
      Step();
    }
    const int64_t limit = 100000;
    for (int64_t step = 0; scheduler_.HasWork() && violation_.empty(); ++step) {
      Step();
      Require(step < limit, "7: the work ends");
    }
    Require(live() == 0, "11: every request has ended");
    Require(scheduler_.pool().num_in_use() == 0, "3: no page is in use after the last request");
    Require(executor_.num_sequences() == 0, "11: the executor holds nothing after the last request");
    return violation_;
  }

  const EngineOptions& options() const { return options_; }
  const SchedulerCounters& counters() const { return scheduler_.counters(); }
  uint64_t finished() const { return finished_; }
  uint64_t cancelled() const { return cancelled_; }
  uint64_t corrupted() const { return corrupted_; }

 private:
  static constexpr int kVocab = 40;
  struct Record {
    Request request;
    uint64_t arrival = 0;
    std::vector<int32_t> expected;
    std::vector<int32_t> outputs;
    bool has_scores = false;
    bool started = false;
    int corrupt_position = -1;
  };

  // --- Random choices ---
  int Pick(int low, int high) { return low + static_cast<int>(random_() % static_cast<uint64_t>(high - low + 1)); }
  bool Chance(int percent) { return Pick(1, 100) <= percent; }
  std::vector<int32_t> RandomTokens(int count) {
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) token = Pick(0, kVocab - 1);
    return tokens;
  }

  EngineOptions RandomOptions() {
    EngineOptions options;
    options.page_size = 1 << Pick(0, 4);
    options.num_pages = Pick(3, 40);
    const int slots = options.page_size * options.num_pages;
    options.max_model_len = std::max(4, Chance(50) ? slots : Pick(4, 2 * slots));
    options.max_num_seqs = Pick(1, 12);
    options.max_num_batched_tokens = Chance(30) ? Pick(1, 8) : Pick(8, 100);
    options.enable_prefix_caching = Chance(85);
    options.max_preemptions_per_sequence = Pick(0, 4);
    return options;
  }
  PrefixIndex::Options RandomIndexOptions() {
    PrefixIndex::Options options;
    options.hash_key = random_();
    if (Chance(25)) options.hash_mask = (1u << Pick(1, 6)) - 1;  // almost every lookup collides
    return options;
  }
  FakeExecutor::Options ExecutorOptions() {
    FakeExecutor::Options options;
    options.vocab_size = kVocab;
    options.is_corrupt = [this](RequestId id, int position) { return records_.at(id).corrupt_position == position; };
    return options;
  }

  Request RandomRequest() {
    Request request;
    const int longest = std::max(1, std::min(options_.max_model_len, options_.page_size * options_.num_pages) / Pick(1, 6));
    request.prompt = families_[Pick(0, 3)];
    request.prompt.resize(Pick(1, longest));
    if (Chance(60)) {
      const int own = Pick(0, static_cast<int>(request.prompt.size()) / 2);
      const std::vector<int32_t> suffix = RandomTokens(own);
      std::copy(suffix.begin(), suffix.end(), request.prompt.end() - own);
    }
    request.max_tokens = Pick(1, std::max(1, longest));
    request.sampling.temperature = Chance(30) ? 0.0f : 1.0f;
    request.sampling.seed = Pick(0, 3);
    if (Chance(10)) request.sampling.presence_penalty = 1.0f;
    if (Chance(20)) request.sampling.num_logprobs = Pick(0, 3);
    if (Chance(10)) request.prompt_logprobs = Pick(0, 2);
    if (request.prompt_logprobs >= 0 && Chance(50)) request.max_tokens = 0;
    if (Chance(60)) request.eos_token_ids = {3, 5};
    if (Chance(30)) request.stop_token_ids = {7};
    if (Chance(20)) request.ignore_eos = true;
    if (Chance(20)) request.min_tokens = Pick(0, request.max_tokens);
    if (Chance(25)) request.cache_salt = "tenant";
    return request;
  }

  // --- What happens ---
  void Arrive() {
    const Request model = RandomRequest();
    const int continuations = Chance(15) ? Pick(2, 4) : 1;
    for (int i = 0; i < continuations; ++i) {
      Record record;
      record.request = model;
      record.request.id = ++last_id_;
      record.request.sequence = i;
      const int64_t tokens = static_cast<int64_t>(model.prompt.size()) + model.max_tokens;
      const int64_t slots = int64_t{options_.page_size} * options_.num_pages;
      const bool fits = tokens <= options_.max_model_len && MaxCachedTokens(model) <= slots;
      Require(CheckFits(options_, record.request).ok() == fits, "admission refuses exactly what cannot fit");
      if (!fits || !violation_.empty()) return;
      record.arrival = ++arrivals_;
      record.expected = FakeExecutor::Continue(record.request, kVocab);
      if (Chance(3)) record.corrupt_position = Pick(1, static_cast<int>(model.prompt.size()) + model.max_tokens);
      const Request request = record.request;
      records_.emplace(request.id, std::move(record));
      scheduler_.Add(request);
    }
  }

  void CancelOne() {
    if (records_.empty()) return;
    const RequestId id = Chance(90) ? std::next(records_.begin(), Pick(0, live() - 1))->first : RequestId{last_id_ + 1000};
    const auto event = scheduler_.End(id, FinishReason::kCancelled, Status());
    Require(event.has_value() == records_.contains(id), "11: a live request can be cancelled, an unknown one is ignored");
    if (event) TakeEvent(*event);
  }

  void Step() {
    if (!scheduler_.HasWork()) return;
    std::map<RequestId, int> before;  // preemptions
    for (const auto& sequence : scheduler_.running()) before[sequence->request.id] = sequence->preemptions;
    const RequestId oldest = scheduler_.running().empty() ? 0 : scheduler_.running().front()->request.id;
    const SchedulerCounters counters = scheduler_.counters();
    const StepPlan plan = scheduler_.Plan();
    CheckPlan(plan);
    CheckService(plan, oldest, counters);
    CheckState();
    for (const PlannedSequence& planned : plan.sequences) {
      Record& record = records_.at(planned.request);
      Require(planned.first_step == !std::exchange(record.started, true), "the first step of a sequence is marked");
      if (planned.first_step) executor_.Begin(record.request);
    }
    StepResult result;
    try {
      executor_.Launch(plan);
      result = executor_.Collect();
    } catch (const std::logic_error& error) {
      Require(false, error.what());
      return;
    }
    for (const TokenEvent& event : scheduler_.Commit(result)) {
      if (event.finish == FinishReason::kError) CheckForgotten(plan, event.request);
      TakeEvent(event);
    }
    CheckState();
  }

  // --- Invariants ---
  bool Require(bool condition, const std::string& what) {
    if (!condition && violation_.empty()) violation_ = what;
    return condition;
  }

  // 4, 5, 6, 7.
  void CheckPlan(const StepPlan& plan) {
    Require(plan.num_rows() >= 1 && plan.num_rows() <= options_.max_num_batched_tokens, "6: rows within the limit");
    Require(static_cast<int>(scheduler_.running().size()) <= options_.max_num_seqs, "6: sequences within the limit");
    for (const PlannedSequence& planned : plan.sequences) {
      const int64_t end = int64_t{planned.num_computed} + planned.num_planned;
      Require(static_cast<int64_t>(planned.pages.size()) == PagesFor(end, options_.page_size), "5: page table length");
      for (size_t i = planned.num_computed / options_.page_size; i < planned.pages.size(); ++i) {
        Require(scheduler_.pool().holders(planned.pages[i]) == 1 && !scheduler_.index().Contains(planned.pages[i]),
                "4: a page that others see is not written");
      }
    }
    const Sequence& oldest = *scheduler_.running().front();
    Require(oldest.num_planned > 0, "7: the oldest sequence advances");
  }

  // 8 and 9, after Plan.
  void CheckService(const StepPlan& plan, RequestId oldest, const SchedulerCounters& before) {
    if (oldest != 0) Require(scheduler_.running().front()->request.id == oldest, "8: the oldest running sequence stays");
    uint64_t last = 0;
    const auto check_order = [&](const Sequence& sequence) {
      const uint64_t arrival = records_.at(sequence.request.id).arrival;
      Require(arrival > last, "9: first come, first served");
      last = arrival;
    };
    int64_t pages_at_end = 0;
    for (const auto& sequence : scheduler_.running()) {
      check_order(*sequence);
      pages_at_end += PagesFor(MaxCachedTokens(sequence->request), options_.page_size);
    }
    for (const auto& sequence : scheduler_.waiting()) {
      check_order(*sequence);
      Require(sequence->preemptions <= options_.max_preemptions_per_sequence, "8: preemptions are bounded");
    }
    if (scheduler_.waiting().empty()) return;
    pages_at_end += PagesFor(MaxCachedTokens(scheduler_.waiting().front()->request), options_.page_size);
    const bool has_room = pages_at_end <= options_.num_pages && plan.num_rows() < options_.max_num_batched_tokens &&
                          static_cast<int>(scheduler_.running().size()) <
                              std::min(options_.max_num_seqs, options_.max_num_batched_tokens);
    const bool deferred = scheduler_.counters().deferrals > before.deferrals;
    const bool preempted = scheduler_.counters().preemptions > before.preemptions;
    Require(!has_room || deferred || preempted, "8: what fits is admitted");
    const RequestId head = scheduler_.waiting().front()->request.id;
    steps_deferred_ = deferred && std::exchange(last_head_, head) == head ? steps_deferred_ + 1 : 0;
    Require(steps_deferred_ <= options_.max_model_len, "8: nobody waits for a prefix longer than it takes to compute it");
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
    Require(pool.num_free() + pool.num_cached() + in_use == options_.num_pages, "1: all pages are there");
    for (const auto& [page, count] : holders) Require(pool.holders(page) == count, "2: holders are counted");
    scheduler_.CheckInvariants();
  }

  // What a sequence with broken logits has written or read cannot be hit by another one.
  void CheckForgotten(const StepPlan& plan, RequestId corrupted) {
    bool found = false;
    for (const PlannedSequence& planned : plan.sequences) {
      found |= planned.request == corrupted;
      if (planned.request != corrupted || planned.num_computed < options_.page_size) continue;
      Require(!scheduler_.index().Contains(planned.pages[0]), "10: pages of broken logits are not in the index");
    }
    Require(found, "an error comes from a planned sequence");
  }

  // 11 and 12.
  void TakeEvent(const TokenEvent& event) {
    const auto it = records_.find(event.request);
    if (!Require(it != records_.end(), "11: no event after the terminal one")) return;
    Record& record = it->second;
    record.outputs.insert(record.outputs.end(), event.tokens.begin(), event.tokens.end());
    Require(record.outputs.size() <= record.expected.size() &&
                std::equal(record.outputs.begin(), record.outputs.end(), record.expected.begin()),
            "12: the output is that of a run alone");
    if (record.request.sampling.num_logprobs >= 0) {
      Require(event.logprobs.size() == event.tokens.size(), "12: each token has its logprob");
    }
    CheckScores(record, event);
    if (event.finish == FinishReason::kNone) return;
    CheckEnd(record, event);
    if (record.started) executor_.End(event.request);
    records_.erase(it);
  }

  void CheckScores(Record& record, const TokenEvent& event) {
    if (!event.prompt_logprobs.empty()) {
      const std::vector<float> expected = FakeExecutor::PromptScores(record.request);
      Require(!std::exchange(record.has_scores, true), "11: prompt logprobs come once");
      Require(event.prompt_logprobs.size() == expected.size() &&
                  std::equal(expected.begin(), expected.end(), event.prompt_logprobs.begin(),
                             [](float score, const SampleResult& result) { return score == result.logprob; }),
              "12: prompt logprobs are those of a run alone");
    }
    const bool due = record.request.prompt_logprobs >= 0 && record.request.prompt.size() > 1;
    Require(event.tokens.empty() || record.has_scores == due, "11: prompt logprobs come before or with the first token");
  }

  void CheckEnd(const Record& record, const TokenEvent& event) {
    const Request& request = record.request;
    switch (event.finish) {
      case FinishReason::kCancelled:
        ++cancelled_;
        return;
      case FinishReason::kError:
        Require(record.corrupt_position > 0 && event.error.code() == StatusCode::kInternal, "an error has a cause");
        Require(record.corrupt_position == static_cast<int>(request.prompt.size() + record.outputs.size()) ||
                    (request.prompt_logprobs >= 0 && record.corrupt_position < static_cast<int>(request.prompt.size())),
                "an error comes where its cause is");
        ++corrupted_;
        return;
      default:
        break;
    }
    Require(record.outputs == record.expected, "12: the output is complete");
    const bool at_limit = static_cast<int>(record.outputs.size()) == request.max_tokens;
    Require(event.finish == FinishReason::kStop || at_limit, "finish_reason length means max_tokens were generated");
    ++finished_;
  }

  int live() const { return static_cast<int>(records_.size()); }

  std::mt19937_64 random_;
  const EngineOptions options_;
  Scheduler scheduler_;
  FakeExecutor executor_;
  std::vector<std::vector<int32_t>> families_;  // token runs that prompts begin with
  int busyness_ = 0;
  std::map<RequestId, Record> records_;  // live requests
  RequestId last_id_ = 0;
  uint64_t arrivals_ = 0;
  int steps_deferred_ = 0;
  RequestId last_head_ = 0;
  uint64_t finished_ = 0, cancelled_ = 0, corrupted_ = 0;
  std::string violation_;
};

}  // namespace diffserve::testing
