// SPDX-License-Identifier: Apache-2.0
// Embeddings through the engine: pooled prompt states over the real executor on the CPU, and which
// requests may take pages from the prefix cache.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "engine/engine.h"
#include "engine/model_executor.h"
#include "models/diagnostics/hidden_state_pool.h"
#include "tests/testing/engine/step_gate.h"
#include "tests/testing/models/checkpoint_writer.h"

namespace diffserve {
namespace {

using Kind = HiddenStatePool::Kind;
using ::testing::HasSubstr;

constexpr int kPooledPageSize = 16;
constexpr int32_t kPooledLoudToken = 7;  // below those of PromptOf

std::vector<int32_t> PromptOf(int which, int tokens) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < tokens; ++i) prompt.push_back((which * 37 + i * i % 11 + i * 3) % 100 + 10);
  return prompt;
}

// Column 0 of the embedding is the loud token's alone, and V of the first layer grows with it
// beyond what float16 pages hold.
std::string PooledCheckpoint() {
  std::vector<FileTensor> tensors = TinyTensors({});
  for (FileTensor& tensor : tensors) {
    const bool is_embedding = tensor.name == "model.embed_tokens.weight";
    if (!is_embedding && tensor.name != "model.layers.0.self_attn.v_proj.weight") continue;
    for (int64_t row = 0; row < tensor.shape[0]; ++row) {
      const float value = !is_embedding ? 1e5f : row == kPooledLoudToken ? 100.0f : 0.0f;
      std::memcpy(&tensor.bytes[static_cast<size_t>(row * tensor.shape[1]) * sizeof(float)], &value,
                  sizeof(value));
    }
  }
  return SafetensorsBytes(tensors);
}

// A separate engine with the tiny model.
class PoolingEngine {
 public:
  explicit PoolingEngine(EngineOptions options = {}, DType kv_dtype = DType::kFloat32,
                         const std::string& weights = {}) {
    if (!weights.empty()) checkpoint_.Write("model.safetensors", weights);
    ModelOptions model_options;
    model_options.model_dir = checkpoint_.dir();
    std::unique_ptr<Model> model = std::move(Model::Load(model_options, pool_)).value();
    hidden_size_ = model->config().hidden_size;
    options.page_size = kPooledPageSize;
    if (options.num_pages == 0) options.num_pages = 128;
    options.max_model_len = 256;
    KvCache kv = model
                     ->MakeUniformKvCache(
                         KvFormat::Of(model->config().attention, kPooledPageSize, kv_dtype),
                         {options.num_pages})
                     .value();
    auto executor = std::make_unique<ModelExecutor>(std::move(model), std::move(kv));
    engine_.emplace(options, std::make_unique<testing::GatedExecutor>(std::move(executor), gate_),
                    [this](TokenEvent event) { Take(std::move(event)); });
  }

  Request Pooled(std::vector<int32_t> prompt, Kind kind) {
    Request request;
    request.id = ++last_id_;
    request.prompt = std::move(prompt);
    const auto pool = std::make_shared<HiddenStatePool>(kind, hidden_size_, hidden_size_);
    pool->Reserve(1);
    request.AddObserver(pool);
    return request;
  }
  Request Generated(std::vector<int32_t> prompt, int max_tokens) {
    Request request;
    request.id = ++last_id_;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    request.sampling.ignore_eos = true;
    return request;
  }

  // Queues all requests before the first step and waits until all have ended. Returns their last
  // events by id.
  std::map<RequestId, TokenEvent> Run(const std::vector<Request>& requests) {
    gate_.Close();
    for (const Request& request : requests) EXPECT_TRUE(engine_->Submit(request).ok());
    gate_.Open();
    std::unique_lock lock(mutex_);
    all_ended_.wait(lock, [&] { return ended_.size() == requests.size(); });
    return std::exchange(ended_, {});
  }
  EngineStats Stats() const { return engine_->Snapshot(); }

 private:
  void Take(TokenEvent event) {
    if (event.finish == FinishReason::kNone) return;
    std::lock_guard lock(mutex_);
    ended_.emplace(event.request, std::move(event));
    all_ended_.notify_one();
  }

  TinyCheckpoint checkpoint_;
  ThreadPool pool_{{.num_threads = 1, .pin = false, .spin_us = 0}};
  int hidden_size_ = 0;
  RequestId last_id_ = 0;
  std::mutex mutex_;
  std::condition_variable all_ended_;
  std::map<RequestId, TokenEvent> ended_;
  testing::StepGate gate_{testing::StepGate::State::kOpen};
  std::optional<Engine> engine_;  // declared last: its thread uses all members above
};

std::vector<float> ValuesOf(const Request& request) {
  const auto& pool = dynamic_cast<const HiddenStatePool&>(*request.observers.front());
  EXPECT_TRUE(pool.is_complete());
  EXPECT_TRUE(pool.status().ok()) << pool.status().message();
  return {pool.values().begin(), pool.values().end()};
}

std::vector<float> Alone(const std::vector<int32_t>& prompt, Kind kind) {
  PoolingEngine engine;
  const Request request = engine.Pooled(prompt, kind);
  EXPECT_EQ(engine.Run({request}).at(request.id).finish, FinishReason::kLength);
  return ValuesOf(request);
}

class PooledStatesTest : public ::testing::TestWithParam<Kind> {};

TEST_P(PooledStatesTest, PooledStateIsBitwiseIndependentOfBatchAndChunks) {
  for (const int step_tokens : {16, 40, 512}) {
    PoolingEngine engine({.max_num_batched_tokens = step_tokens});
    std::vector<Request> requests;
    for (int i = 0; i < 6; ++i)
      requests.push_back(engine.Pooled(PromptOf(i, 90 - i * 13), GetParam()));
    requests.insert(requests.begin() + 2, engine.Generated(PromptOf(9, 50), 12));
    engine.Run(requests);
    for (const Request& request : requests) {
      if (request.observers.empty()) continue;
      EXPECT_EQ(ValuesOf(request), Alone(request.prompt.ids(), GetParam())) << step_tokens;
    }
  }
}

TEST_P(PooledStatesTest, PooledStateIsBitwiseTheSameAfterPreemption) {
  PoolingEngine engine({.num_pages = 20, .max_num_batched_tokens = 24});
  std::vector<Request> requests;
  for (int i = 0; i < 3; ++i) {
    requests.push_back(engine.Generated(PromptOf(i + 20, 40), 100));
    requests.push_back(engine.Pooled(PromptOf(i, 150), GetParam()));
  }
  engine.Run(requests);
  EXPECT_GT(engine.Stats().preemptions, 0u);
  for (const Request& request : requests) {
    if (request.observers.empty()) continue;
    EXPECT_EQ(ValuesOf(request), Alone(request.prompt.ids(), GetParam()));
  }
}

TEST_P(PooledStatesTest, OnlyLastStatePoolingUsesThePrefixCache) {
  PoolingEngine engine;
  const std::vector<int32_t> prompt = PromptOf(1, 70);
  const Request first = engine.Generated(prompt, 5);
  engine.Run({first});
  const Request second = engine.Pooled(prompt, GetParam());
  const int cached = engine.Run({second}).at(second.id).cached_tokens;
  EXPECT_EQ(cached, GetParam() == Kind::kLast ? 4 * kPooledPageSize : 0);
  EXPECT_EQ(ValuesOf(second), Alone(prompt, GetParam()));
}

TEST_P(PooledStatesTest, PromptOfOneTokenIsPooled) {
  EXPECT_EQ(Alone({11}, GetParam()), Alone({11}, Kind::kLast));
}

TEST_P(PooledStatesTest, NonFiniteStatesEndOnlyTheirRequest) {
  const std::string weights = PooledCheckpoint();
  std::vector<int32_t> loud = PromptOf(1, 40);
  loud.back() = kPooledLoudToken;
  PoolingEngine engine({}, DType::kFloat16, weights);
  const Request bad = engine.Pooled(loud, GetParam());
  const Request good = engine.Pooled(PromptOf(2, 40), GetParam());
  const std::map<RequestId, TokenEvent> ended = engine.Run({bad, good});
  EXPECT_EQ(ended.at(bad.id).finish, FinishReason::kError);
  EXPECT_THAT(ended.at(bad.id).error.message(), HasSubstr("non-finite hidden states"));
  EXPECT_EQ(ended.at(good.id).finish, FinishReason::kLength);

  PoolingEngine other({}, DType::kFloat16, weights);
  const Request alone = other.Pooled(PromptOf(2, 40), GetParam());
  other.Run({alone});
  EXPECT_EQ(ValuesOf(good), ValuesOf(alone));
}

INSTANTIATE_TEST_SUITE_P(Kinds, PooledStatesTest, ::testing::Values(Kind::kMean, Kind::kLast),
                         [](const auto& info) {
                           return info.param == Kind::kMean ? "Mean" : "Last";
                         });

}  // namespace
}  // namespace diffserve
