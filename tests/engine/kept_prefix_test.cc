// SPDX-License-Identifier: Apache-2.0
// Answers after a hit in the prefix cache on disk, of every golden case: the same bits as without
// it, in every page format and chunking, and after preemptions.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>

#include "engine/engine.h"
#include "engine/model_executor.h"
#include "engine/page_store/page_store.h"
#include "engine/page_store/store_tier.h"
#include "tests/testing/engine/step_gate.h"
#include "tests/testing/kernels/temporary_directory.h"
#include "tests/testing/models/golden_case.h"

namespace diffserve {
namespace {

struct KeptAnswer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  friend bool operator==(const KeptAnswer&, const KeptAnswer&) = default;
};

struct KeptRun {
  std::string directory;  // of the tier; empty: no prefix is cached
  int chunk = 2048;       // tokens per step
  int num_pages = 256;
};

class KeptPrefixTest : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Model> Load() {
    ModelOptions options;
    options.model_dir = GoldenCasesDir() + "/" + GetParam();
    return std::move(Model::Load(options, pool_)).value();
  }

  // Serves all requests at once.
  std::map<RequestId, KeptAnswer> Serve(DType pages, const KeptRun& run,
                                        const std::vector<Request>& requests) {
    std::unique_ptr<Model> model = Load();
    const EngineOptions options = OptionsOf(*model, run);
    KvCache kv = model
                     ->MakeUniformKvCache(
                         KvFormat::Of(model->config().attention, options.page_size, pages),
                         {.num_pages = options.num_pages,
                          .num_window_pages = options.num_window_pages,
                          .num_states = std::max(1, options.num_state_slots)})
                     .value();
    std::unique_ptr<PageTier> tier;
    if (!run.directory.empty()) {
      Result<std::unique_ptr<PageStore>> store = PageStore::Open(
          {.directory = run.directory, .max_bytes = 64 << 20});
      EXPECT_TRUE(store.ok()) << store.status().message();
      tier = std::make_unique<StoreTier>(std::move(store).value(), StoreTier::MemoryIn(kv));
    }
    testing::StepGate gate(testing::StepGate::State::kClosed);
    std::map<RequestId, KeptAnswer> answers;
    std::mutex mutex;
    std::condition_variable all_ended;
    size_t ended = 0;
    Engine engine(
        options,
        std::make_unique<testing::GatedExecutor>(
            std::make_unique<ModelExecutor>(std::move(model), std::move(kv)), gate),
        [&](TokenEvent event) {
          const std::lock_guard lock(mutex);
          EXPECT_TRUE(event.error.ok()) << event.error.message();
          KeptAnswer& answer = answers[event.request];
          answer.tokens.insert(answer.tokens.end(), event.tokens.begin(), event.tokens.end());
          for (const SampleResult& result : event.logprobs)
            answer.logprobs.push_back(result.logprob);
          if (event.finish != FinishReason::kNone && ++ended == requests.size())
            all_ended.notify_one();
        },
        nullptr, std::move(tier));
    for (const Request& request : requests) EXPECT_TRUE(engine.Submit(request).ok());
    gate.Open();
    std::unique_lock lock(mutex);
    all_ended.wait(lock, [&] { return ended == requests.size(); });
    stats_ = engine.Snapshot();
    return answers;
  }

  static EngineOptions OptionsOf(const Model& model, const KeptRun& run) {
    EngineOptions options = {.page_size = kGoldenPageSize,
                             .num_pages = run.num_pages,
                             .max_model_len = 512,
                             .max_num_seqs = 4,
                             .max_num_batched_tokens = run.chunk,
                             .enable_prefix_caching = !run.directory.empty()};
    for (const LayerConfig& layer : model.config().layers)
      options.window = std::max(options.window, layer.window);
    if (model.config().num_state_layers() == 0 && options.window == 0) return options;
    constexpr int kSnapshots = 24;
    options.num_state_slots = options.MaxRunning() + kSnapshots;
    options.state_snapshot_interval = 2 * options.page_size;
    if (options.window > 0) {
      options.num_window_pages = static_cast<int>(options.WindowPagesMin(options.MaxRunning()) +
                                                  options.MaxRunning() *
                                                      options.WindowPagesPerSequence());
    }
    return options;
  }

  // Draws from a prompt of some pages.
  static std::vector<Request> Requests() {
    const GoldenCase golden = ReadGoldenCase(GetParam()).value();
    std::vector<Request> requests(3);
    for (size_t i = 0; i < requests.size(); ++i) {
      std::vector<int32_t> prompt = golden.AllTokens();
      std::ranges::rotate(prompt, prompt.begin() + static_cast<ptrdiff_t>(i));
      prompt.resize(std::min<size_t>(prompt.size(), 5 * kGoldenPageSize + 3));
      requests[i].id = i + 1;
      requests[i].prompt = std::move(prompt);
      requests[i].max_tokens = 20;
      requests[i].sampling.ignore_eos = true;
      requests[i].sampling.seed = i;
      requests[i].sampling.num_logprobs = 0;
    }
    return requests;
  }

  EngineStats stats_;  // of the last run
  ThreadPool pool_{{.num_threads = 1, .pin = false, .spin_us = 0}};
};

TEST_P(KeptPrefixTest, AnswersHaveTheSameBitsInEveryFormatAndChunking) {
  const std::vector<Request> requests = Requests();
  const std::unique_ptr<Model> model = Load();
  for (const DType pages : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt8,
                            DType::kInt8KInt4V, DType::kInt4}) {
    if (!HasPagesOf(*model, pages)) continue;
    SCOPED_TRACE(NameOf(pages));
    const auto expected = Serve(pages, {}, requests);
    const TemporaryDirectory directory;
    const std::string tier = directory.path().string();
    EXPECT_EQ(Serve(pages, {.directory = tier, .chunk = 24}, requests), expected);
    for (const int chunk : {2048, 7}) {
      EXPECT_EQ(Serve(pages, {.directory = tier, .chunk = chunk}, requests), expected) << chunk;
      EXPECT_GE(stats_.tier_hits, 3 * 4u * kGoldenPageSize) << chunk;
      EXPECT_EQ(stats_.tier->read_errors, 0u);
    }
  }
}

TEST_P(KeptPrefixTest, PreemptedSequencesFindTheirPagesOnDisk) {
  std::vector<Request> requests = Requests();
  for (Request& request : requests) request.max_tokens = 60;
  const DType pages = DType::kFloat32;
  const auto expected = Serve(pages, {}, requests);
  const TemporaryDirectory directory;
  const KeptRun run = {.directory = directory.path().string(), .chunk = 32, .num_pages = 22};
  EXPECT_EQ(Serve(pages, run, requests), expected);
  EXPECT_GT(stats_.preemptions, 0u);
  EXPECT_EQ(Serve(pages, run, requests), expected);
  EXPECT_GT(stats_.tier_hits, 0u);
}

INSTANTIATE_TEST_SUITE_P(Golden, KeptPrefixTest, ::testing::ValuesIn(GoldenCaseNames()),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace diffserve
