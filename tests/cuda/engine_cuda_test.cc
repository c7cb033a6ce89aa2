// SPDX-License-Identifier: Apache-2.0
// The engine over the real executor on the device: a sequence's result does not depend on the rest
// of its batches, and a lost device ends everything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>

#include "engine/engine.h"
#include "engine/engine_loop.h"
#include "engine/inbox.h"
#include "engine/model_executor.h"
#include "engine/page_store/host_store.h"
#include "engine/page_store/page_store.h"
#include "engine/page_store/store_tier.h"
#include "engine/page_store/two_level_store.h"
#include "tests/cuda/device_array.h"
#include "tests/testing/engine/fake_constraint.h"
#include "tests/testing/kernels/eventually.h"
#include "tests/testing/kernels/temporary_directory.h"
#include "tests/testing/models/checkpoint_writer.h"
#include "tests/testing/models/golden_case.h"
#if defined(DIFFSERVE_CUDA_ON_CPU)
#include "tests/kernels/shim/host_calls.h"
#include "tests/kernels/shim/queued_work.h"
#include "tests/kernels/shim/simulated_products.h"
#include "tests/kernels/shim/transfer_counts.h"
#endif

namespace diffserve {
namespace {

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;         // of tokens
  std::vector<float> prompt_logprobs;  // of the prompt's tokens except the first
  FinishReason finish = FinishReason::kNone;
  Status error;

  void Add(const TokenEvent& event) {
    tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
    for (const SampleResult& result : event.logprobs) logprobs.push_back(result.logprob);
    for (const SampleResult& result : event.prompt_logprobs)
      prompt_logprobs.push_back(result.logprob);
    finish = event.finish;
    error = event.error;
  }
  friend bool operator==(const Answer& a, const Answer& b) {
    return a.tokens == b.tokens && a.logprobs == b.logprobs &&
           a.prompt_logprobs == b.prompt_logprobs && a.finish == b.finish;
  }
};

class CudaEngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::KernelsCanRun()) GTEST_SKIP() << cuda::OpenDevice(0).status().message();
    options_.page_size = cuda::kPageSize;
    options_.num_pages = 32;
    options_.max_model_len = 256;
    options_.max_num_seqs = 6;
    options_.max_num_batched_tokens = 48;
  }

  // How often something was made that later steps use again.
  static int64_t MadeOnce() {
#if defined(DIFFSERVE_CUDA_ON_CPU)
    return shim::graphs_made + shim::simulated_products.choices_made;
#else
    return 0;
#endif
  }

  static KvCache MakeKvCache(const Model& model, const KvCacheSize& size) {
    const KvFormat format = KvFormat::Of(model.config().attention, cuda::kPageSize,
                                         DType::kBFloat16);
    return model.MakeUniformKvCache(format, size).value();
  }

  // With the second tier of the prefix cache in tier_, if host_units_ are given: before files, if
  // there is a directory for them.
  std::unique_ptr<Executor> MakeExecutor() {
    ModelOptions model_options;
    model_options.model_dir = model_dir_.empty() ? GoldenCasesDir() + "/" + case_ : model_dir_;
    model_options.device = Device::kCuda;
    model_options.gpu = gpu_;
    model_options.limits = {options_.max_num_batched_tokens, options_.max_num_seqs,
                            options_.max_model_len, size_t{1} << 20};
    model_options.batch_invariant = batch_invariant_;
    std::unique_ptr<Model> model = std::move(Model::Load(model_options, pool_)).value();
    EXPECT_EQ(model->config().vocab_size, vocab_);
    KvCache kv = MakeKvCache(*model, {.num_pages = options_.num_pages,
                                      .num_window_pages = options_.num_window_pages,
                                      .num_states = std::max(1, options_.num_state_slots)});
    if (warms_up_) {
      KvCache few = MakeKvCache(
          *model, {.num_pages = 1, .num_window_pages = std::min(1, options_.num_window_pages)});
      EXPECT_TRUE(testing::IsOk(model->WarmUp(few)));
      EXPECT_TRUE(testing::IsOk(model->WarmUp(kv)));
    }
    made_before_ = MadeOnce();
    if (host_units_ > 0) {
      const size_t unit_bytes = KvCache::BytesPerPage(kv.layers());
      std::unique_ptr<EntryStore> store =
          std::move(HostStore::Create(kv.transfer(), static_cast<int64_t>(host_units_ * unit_bytes),
                                      unit_bytes))
              .value();
      if (!files_.empty()) {
        std::unique_ptr<HostStore> host(static_cast<HostStore*>(store.release()));
        store = std::make_unique<TwoLevelStore>(
            std::move(host),
            std::move(PageStore::Open({.directory = files_, .max_bytes = 64 << 20})).value());
      }
      tier_ = std::make_unique<StoreTier>(
          std::move(store), StoreTier::MemoryIn(kv),
          [transfer = kv.transfer()] { return transfer->MarkSteps(); });
    }
    return std::make_unique<ModelExecutor>(std::move(model), std::move(kv));
  }

  // Submits all requests at once, or each when the one before has ended and after_each_ returned.
  // Returns their answers by id.
  std::map<RequestId, Answer> Serve(std::vector<Request> requests) {
    std::map<RequestId, Answer> answers;
    std::mutex mutex;
    std::condition_variable all_ended;
    size_t ended = 0;
    std::unique_ptr<Executor> executor = MakeExecutor();
    const auto take = [&](const TokenEvent& event) {
      std::lock_guard lock(mutex);
      answers[event.request].Add(event);
      if (event.finish == FinishReason::kNone) return;
      ++ended;
      all_ended.notify_one();
    };
    Engine engine(options_, std::move(executor), take, nullptr, std::move(tier_));
    const size_t count = requests.size();
    size_t num_asked = 0;
    for (Request& request : requests) {
      if (request.constraint != nullptr) request.constraint = request.constraint->Clone();
      EXPECT_TRUE(testing::IsOk(engine.Submit(std::move(request))));
      if (after_each_) {
        std::unique_lock lock(mutex);
        ++num_asked;
        all_ended.wait(lock, [&] { return ended == num_asked; });
        lock.unlock();
        after_each_(engine, num_asked);
      }
    }
    std::unique_lock lock(mutex);
    all_ended.wait(lock, [&] { return ended == count; });
    stats_ = engine.Snapshot();
    return answers;
  }

  // The same by a clock for which all steps take the same time. What is proposed depends on what
  // rows cost, so with this clock it does not depend on the machine.
  std::map<RequestId, Answer> ServeInStepsOfOneTime(std::vector<Request> requests) {
    std::map<RequestId, Answer> answers;
    Inbox inbox(options_);
    size_t ended = 0;
    TimePoint now{};
    EngineLoop loop(options_, MakeExecutor(), inbox,
                    {.now = [&now] { return now += std::chrono::milliseconds(1); },
                     .deliver =
                         [&](const TokenEvent& event) {
                           answers[event.request].Add(event);
                           if (event.finish == FinishReason::kNone) return;
                           inbox.Finish(event.request);
                           ++ended;
                         },
                     .publish = [&](const EngineStats& stats) { stats_ = stats; },
                     .kv_events = nullptr});
    const size_t count = requests.size();
    for (Request& request : requests) EXPECT_TRUE(testing::IsOk(inbox.Submit(std::move(request))));
    while (ended < count) loop.Turn();
    return answers;
  }

  // Every kind of request: greedy, seeded, filtered, penalised, biased, scored.
  Request MakeRequest(RequestId id, int prompt_tokens, int max_tokens) const {
    std::vector<int32_t> prompt;
    for (int i = 0; i < prompt_tokens; ++i)
      prompt.push_back(static_cast<int32_t>((id * 7 + static_cast<RequestId>(i) * 13) % 60));
    Request request;
    request.id = id;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    request.sampling.seed = id;
    request.sampling.temperature = id % 4 == 0 ? 0.0f : 0.9f;
    request.sampling.num_logprobs = id % 2 == 0 ? 2 : -1;
    if (id % 4 == 1) request.sampling.top_p = 0.8f;
    if (id % 4 == 2) request.sampling.repetition_penalty = 1.3f;
    if (id % 4 == 3) request.sampling.logit_bias = {{3, 2.0f}, {5, -4.0f}};
    if (id % 4 == 3) request.sampling.prompt_logprobs = 1;
    if (id % 4 >= 2) {
      request.constraint = std::make_shared<testing::FakeConstraint>(
          testing::FakeConstraint::Options{.seed = id, .vocab_size = vocab_, .one_of = 3});
    }
    return request;
  }

  void ExpectTheSameAloneAndInCompany() {
    // Fewer than four sequences need after slot 64, so some are preempted and recomputed.
    options_.num_pages = 5;
    options_.enable_prefix_caching = false;
    std::vector<Request> requests;
    for (RequestId id = 1; id <= 4; ++id)
      requests.push_back(MakeRequest(id, 58 + static_cast<int>(id), 8));
    const std::map<RequestId, Answer> together = Serve(requests);
    for (const Request& request : requests) {
      const std::map<RequestId, Answer> alone = Serve({request});
      EXPECT_EQ(alone.at(request.id).finish, FinishReason::kLength);
      EXPECT_EQ(alone.at(request.id).tokens.size(), 8u);
      EXPECT_TRUE(alone.at(request.id) == together.at(request.id)) << "request " << request.id;
    }
  }

  // Three prompts of two full pages, asked for in turns, in a pool that holds two of them.
  void ExpectTheSameFromHostMemory(size_t entries_per_prompt) {
    options_.num_pages = 5;
    std::vector<Request> requests;
    for (RequestId id = 1; id <= 6; ++id) {
      requests.push_back(MakeRequest(id % 3 * 4 + 1, 150, 6));
      requests.back().id = id;
    }
    const std::map<RequestId, Answer> expected = Serve(requests);
    host_units_ = 64;
    after_each_ = [=](Engine& engine, size_t num_ended) {
      const size_t entries = entries_per_prompt * std::min<size_t>(num_ended, 3);
      EXPECT_TRUE(testing::Eventually([&] { return engine.Snapshot().tier->pages == entries; }));
    };
    EXPECT_EQ(Serve(requests), expected);
    EXPECT_EQ(stats_.tier_hits, 3 * 2u * static_cast<unsigned>(options_.page_size));
  }

  // The same prompts in files, by engines one after another, alone and in company, in steps of
  // several sizes. Host memory holds what is on its way, or everything.
  void ExpectTheSameFromFiles(size_t entries_per_prompt) {
    options_.num_pages = 5;
    std::vector<Request> requests;
    for (RequestId id = 1; id <= 6; ++id) {
      requests.push_back(MakeRequest(id % 3 * 4 + 1, 150, 6));
      requests.back().id = id;
    }
    const std::map<RequestId, Answer> expected = Serve(requests);
    const TemporaryDirectory directory;
    files_ = (directory.path() / "cache").string();
    const size_t num_entries = 3 * entries_per_prompt;
    host_units_ = 64;
    after_each_ = [=](Engine& engine, size_t num_ended) {
      const size_t entries = entries_per_prompt * std::min<size_t>(num_ended, 3);
      EXPECT_TRUE(testing::Eventually([&] { return engine.Snapshot().tier->pages == entries; }));
    };
    EXPECT_EQ(Serve(requests), expected);
    for (const auto& [host_units, chunk] :
         {std::pair(TwoLevelStore::MinUnits(2), 48), std::pair(size_t{64}, 17)}) {
      SCOPED_TRACE(chunk);
      host_units_ = host_units;
      options_.max_num_batched_tokens = chunk;
      after_each_ = [=](Engine& engine, size_t) {
        EXPECT_EQ(engine.Snapshot().tier->pages, num_entries);
      };
      EXPECT_EQ(Serve(requests), expected);
      EXPECT_EQ(stats_.tier_hits, 6 * 2u * static_cast<unsigned>(options_.page_size));
      EXPECT_EQ(stats_.tier->read_errors + stats_.tier->write_errors, 0u);
      after_each_ = nullptr;
      EXPECT_EQ(Serve(requests), expected);
      EXPECT_GT(stats_.tier_hits, 0u);
    }
  }

  // Texts that repeat themselves, some because nothing else is allowed.
  void ExpectTheSameWithProposals() {
    std::vector<Request> requests;
    for (RequestId id = 1; id <= 4; ++id) {
      Request request = MakeRequest(id, 20, 60);
      request.sampling.logit_bias = {};
      request.sampling.repetition_penalty = 1;
      request.constraint = nullptr;
      if (id % 2 == 0) {
        std::vector<uint32_t> allowed(MaskWords(vocab_));
        allowed[0] = 3u << id;
        request.allowed_tokens = std::make_shared<const std::vector<uint32_t>>(std::move(allowed));
      }
      requests.push_back(std::move(request));
    }
    const std::map<RequestId, Answer> expected = Serve(requests);
    options_.speculative_tokens = EngineOptions::kVerifiedRowsMax - 1;
    options_.num_state_slots += options_.num_state_slots > 0 ? 16 : 0;
    EXPECT_EQ(ServeInStepsOfOneTime(requests), expected);
    EXPECT_GT(stats_.accepted_tokens.total(), 20u);
    for (const Request& request : requests) {
      EXPECT_TRUE(ServeInStepsOfOneTime({request}).at(request.id) == expected.at(request.id))
          << request.id;
    }
  }

  void UseStatesAndWindows() {
    case_ = "phi4flash_stored_lm_head_shards";
    vocab_ = 100;
    options_.num_state_slots = options_.MaxRunning();
    options_.window = 7;
    options_.num_window_pages = static_cast<int>(options_.WindowPagesMin(options_.MaxRunning()));
  }

  std::string case_ = "unilm_v2_gqa2_bf16";  // lambda per token, both maps on one K
  std::string model_dir_;                    // instead of the case's
  int vocab_ = 105;
  bool batch_invariant_ = true;
  bool warms_up_ = false;
  int64_t made_before_ = 0;  // MadeOnce() when the last executor was made
  size_t host_units_ = 0;    // of a page's size
  std::string files_;        // the directory of the second tier's files; empty: none
  int gpu_ = 0;
  std::function<void(Engine&, size_t num_ended)> after_each_;
  EngineOptions options_;
  EngineStats stats_;  // of the last Serve
  std::unique_ptr<PageTier> tier_;
  ThreadPool pool_{{.num_threads = 1, .pin = false, .spin_us = 0}};
};

TEST_F(CudaEngineTest, OutputIsIndependentOfBatchChunksAndPreemptions) {
  ExpectTheSameAloneAndInCompany();
}

TEST_F(CudaEngineTest, OutputWithStatesAndWindowsIsIndependentOfBatch) {
  UseStatesAndWindows();
  ExpectTheSameAloneAndInCompany();
}

TEST_F(CudaEngineTest, WarmUpChangesNoAnswer) {
  for (const bool has_states : {false, true}) {
    if (has_states) UseStatesAndWindows();
    std::vector<Request> requests;
    for (RequestId id = 1; id <= 4; ++id) requests.push_back(MakeRequest(id, 20, 6));
    warms_up_ = false;
    const std::map<RequestId, Answer> expected = Serve(requests);
    warms_up_ = true;
    EXPECT_EQ(Serve(requests), expected) << has_states;
  }
}

#if defined(DIFFSERVE_CUDA_ON_CPU)
// Prompts of whole and half steps, and a context beyond one split of attention.
TEST_F(CudaEngineTest, FirstRequestsAfterTheWarmUpMakeNothing) {
  const TinyCheckpoint checkpoint({.hidden_size = 64, .max_positions = 1024, .config_changes = {}});
  model_dir_ = checkpoint.dir();
  vocab_ = 128;
  batch_invariant_ = false;
  options_.max_model_len = 1024;
  options_.max_num_batched_tokens = 64;
  after_each_ = [](Engine&, size_t) {};
  const std::vector<Request> requests = {MakeRequest(1, 32, 4), MakeRequest(2, 64, 4),
                                         MakeRequest(5, 576, 4)};
  Serve(requests);
  EXPECT_GT(MadeOnce(), made_before_);
  warms_up_ = true;
  Serve(requests);
  EXPECT_EQ(MadeOnce(), made_before_);
}
#endif

TEST_F(CudaEngineTest, ProposalsChangeNoAnswer) { ExpectTheSameWithProposals(); }

TEST_F(CudaEngineTest, ProposalsChangeNoAnswerOfAModelWithStates) {
  UseStatesAndWindows();
  ExpectTheSameWithProposals();
}

TEST_F(CudaEngineTest, PagesInHostMemoryComeBackWithTheSameBits) {
  ExpectTheSameFromHostMemory(/*entries_per_prompt=*/2);
}

TEST_F(CudaEngineTest, StatesAndWindowsInHostMemoryComeBackWithTheSameBits) {
  UseStatesAndWindows();
  options_.num_state_slots += 8;
  options_.num_window_pages += static_cast<int>(8 * options_.WindowPagesPerSequence());
  options_.state_snapshot_interval = options_.page_size;
  ExpectTheSameFromHostMemory(/*entries_per_prompt=*/4);
}

TEST_F(CudaEngineTest, PagesInFilesComeBackWithTheSameBitsInEverySchedule) {
  ExpectTheSameFromFiles(/*entries_per_prompt=*/2);
}

TEST_F(CudaEngineTest, StatesAndWindowsInFilesComeBackWithTheSameBitsInEverySchedule) {
  UseStatesAndWindows();
  options_.num_state_slots += 8;
  options_.num_window_pages += static_cast<int>(8 * options_.WindowPagesPerSequence());
  options_.state_snapshot_interval = options_.page_size;
  ExpectTheSameFromFiles(/*entries_per_prompt=*/4);
}

TEST_F(CudaEngineTest, RequestAloneGetsTheSameAnswerAgainWithoutBatchInvariance) {
  batch_invariant_ = false;
  for (RequestId id = 1; id <= 4; ++id) {
    const Request request = MakeRequest(id, 20, 8);
    const Answer first = Serve({request}).at(id);
    EXPECT_EQ(first.tokens.size(), 8u);
    EXPECT_TRUE(Serve({request}).at(id) == first) << "request " << id;
  }
}

// The simulated device counts the buffers that are released before the work on them has run. A GPU
// would report an illegal address to the next engine.
TEST_F(CudaEngineTest, ExecutorWithStepsInFlightEndsAfterThem) {
  std::unique_ptr<Executor> executor = MakeExecutor();
  const Request request = MakeRequest(1, 20, 5);
  const std::vector<int32_t> pages = {3}, outputs = {kDrawnByStepBefore};
  StepPlan plan;
  plan.sequences.resize(1);
  PlannedSequence& planned = plan.sequences[0];
  planned.request = &request;
  planned.num_planned = 20;
  planned.samples = true;
  planned.pages = pages;
  executor->Launch(plan);
  planned.num_computed = 20;
  planned.num_planned = 1;
  planned.outputs = outputs;
  executor->Launch(plan);
#if defined(DIFFSERVE_CUDA_ON_CPU)
  EXPECT_GT(shim::QueuedOperations(), 0u);
  shim::releases_under_work = 0;
  executor.reset();
  EXPECT_EQ(shim::releases_under_work, 0);
#endif
  executor.reset();
  EXPECT_EQ(Serve({request}).at(1).tokens.size(), 5u);
}

#if defined(DIFFSERVE_CUDA_ON_CPU)
// The engine's thread and those of the second tier start without a device.
TEST_F(CudaEngineTest, EveryThreadUsesTheModelsDevice) {
  shim::simulated_device.count = 2;
  gpu_ = 1;
  ExpectTheSameFromHostMemory(/*entries_per_prompt=*/2);
  EXPECT_EQ(shim::AllocatedDeviceBytes(0), 0u);
  shim::simulated_device = {};
}

// Page tables, draws' tasks with their masks and adjustments, and prompts' tokens together.
TEST_F(CudaEngineTest, StepHasOneTransferToTheDeviceAndOneBack) {
  options_.max_num_batched_tokens = 120;  // so that each step draws
  std::vector<Request> requests;
  for (RequestId id = 1; id <= 4; ++id) requests.push_back(MakeRequest(id, 30, 8));
  std::unique_ptr<Executor> executor = MakeExecutor();
  shim::transfer_counts = {};
  {
    Engine engine(options_, std::move(executor), [](const TokenEvent&) {});
    for (Request& request : requests) EXPECT_TRUE(testing::IsOk(engine.Submit(std::move(request))));
    engine.Drain(std::chrono::steady_clock::time_point::max());
    stats_ = engine.Snapshot();
  }
  EXPECT_GE(stats_.steps, 8u);
  EXPECT_EQ(shim::transfer_counts.to_device, static_cast<int64_t>(stats_.steps));
  EXPECT_EQ(shim::transfer_counts.to_host, static_cast<int64_t>(stats_.steps));
}

TEST_F(CudaEngineTest, LostDeviceEndsEveryStreamWithAnErrorEvent) {
  options_.num_pages = 16;
  std::vector<Request> requests;
  for (RequestId id = 1; id <= 4; ++id) requests.push_back(MakeRequest(id, 10, 200));
  shim::FailLater(300, cudaErrorIllegalAddress);
  const std::map<RequestId, Answer> answers = Serve(requests);
  shim::ResetContext();
  for (const auto& [id, answer] : answers) {
    EXPECT_EQ(answer.finish, FinishReason::kError);
    EXPECT_EQ(answer.error.code(), StatusCode::kUnavailable);
  }
}
#endif

}  // namespace
}  // namespace diffserve
