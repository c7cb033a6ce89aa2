// SPDX-License-Identifier: Apache-2.0
// The engine over the real executor on the CPU.
#include "engine/model_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>

#include "engine/engine.h"
#include "tests/testing/models/checkpoint_writer.h"
#include "tests/testing/models/golden_case.h"

namespace diffserve {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kLoudToken = 7;

// Only the loud token has a value in column 0 of the embedding, and V of the first layer grows with
// it: to about 500,000 for that token, to the weights' own size for every other.
std::string CheckpointWithALoudToken() {
  const TinyCheckpointOptions options;
  std::vector<FileTensor> tensors = TinyTensors(options);
  for (FileTensor& tensor : tensors) {
    const bool is_embedding = tensor.name == "model.embed_tokens.weight";
    if (!is_embedding && tensor.name != "model.layers.0.self_attn.v_proj.weight") continue;
    for (int64_t row = 0; row < tensor.shape[0]; ++row) {
      const float value = !is_embedding ? 1e5f : row == kLoudToken ? 100.0f : 0.0f;
      std::memcpy(&tensor.bytes[static_cast<size_t>(row * tensor.shape[1]) * sizeof(float)], &value,
                  sizeof(value));
    }
  }
  return SafetensorsBytes(tensors);
}

struct ExecutedAnswer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  Status error;
  friend bool operator==(const ExecutedAnswer& a, const ExecutedAnswer& b) {
    return a.tokens == b.tokens && a.logprobs == b.logprobs && a.error.ok() == b.error.ok();
  }
};

class ModelExecutorTest : public ::testing::Test {
 protected:
  // Runs all requests at once, as far as they fit; returns their answers by id.
  std::map<RequestId, ExecutedAnswer> Serve(DType kv_dtype, const std::vector<Request>& requests) {
    ModelOptions model_options;
    model_options.model_dir = model_dir_;
    std::unique_ptr<Model> model = std::move(Model::Load(model_options, pool_)).value();
    KvCache kv = model
                     ->MakeUniformKvCache(
                         KvFormat::Of(model->config().attention, options_.page_size, kv_dtype),
                         {.num_pages = options_.num_pages,
                          .num_window_pages = options_.num_window_pages,
                          .num_states = std::max(1, options_.num_state_slots)})
                     .value();
    std::map<RequestId, ExecutedAnswer> answers;
    std::mutex mutex;
    std::condition_variable all_ended;
    size_t ended = 0;
    Engine engine(options_, std::make_unique<ModelExecutor>(std::move(model), std::move(kv)),
                  [&](TokenEvent event) {
                    std::lock_guard lock(mutex);
                    ExecutedAnswer& answer = answers[event.request];
                    answer.tokens.insert(answer.tokens.end(), event.tokens.begin(),
                                         event.tokens.end());
                    for (const SampleResult& result : event.logprobs)
                      answer.logprobs.push_back(result.logprob);
                    if (event.finish == FinishReason::kNone) return;
                    answer.error = event.error;
                    ++ended;
                    all_ended.notify_one();
                  });
    for (const Request& request : requests) EXPECT_TRUE(engine.Submit(request).ok());
    std::unique_lock lock(mutex);
    all_ended.wait(lock, [&] { return ended == requests.size(); });
    stats_ = engine.Snapshot();
    return answers;
  }

  static Request MakeRequest(RequestId id, int32_t token_in_the_middle) {
    Request request;
    request.id = id;
    std::vector<int32_t> prompt;
    for (RequestId i = 0; i < 40; ++i)
      prompt.push_back(static_cast<int32_t>((id * 11 + i * 3) % 80 + 20));
    prompt[5] = token_in_the_middle;  // its chunk draws nothing: a later one must see it
    request.prompt = prompt;
    request.max_tokens = 12;
    request.sampling.seed = id;
    request.sampling.num_logprobs = 1;
    request.sampling.logit_bias = {{kLoudToken, -1000.0f}};
    return request;
  }

  TinyCheckpoint checkpoint_;
  std::string model_dir_ = checkpoint_.dir();
  EngineOptions options_ = {
      .page_size = 16, .num_pages = 64, .max_model_len = 128, .max_num_batched_tokens = 24};
  EngineStats stats_;
  ThreadPool pool_{{.num_threads = 1, .pin = false, .spin_us = 0}};
};

TEST_F(ModelExecutorTest, ValueBeyondFloat16PagesEndsOnlyItsRequest) {
  checkpoint_.Write("model.safetensors", CheckpointWithALoudToken());
  std::vector<Request> quiet;
  for (RequestId id = 1; id <= 3; ++id) quiet.push_back(MakeRequest(id, 20));
  const std::map<RequestId, ExecutedAnswer> expected = Serve(DType::kFloat16, quiet);
  for (const auto& [id, answer] : expected) EXPECT_TRUE(answer.error.ok()) << id;

  std::vector<Request> all = quiet;
  all.insert(all.begin() + 1, MakeRequest(9, kLoudToken));
  std::map<RequestId, ExecutedAnswer> answers = Serve(DType::kFloat16, all);
  EXPECT_EQ(answers[9].error.code(), StatusCode::kInternal);
  EXPECT_THAT(answers[9].error.message(), HasSubstr("beyond 65504 makes in float16 KV pages"));
  EXPECT_TRUE(answers[9].tokens.empty());
  answers.erase(9);
  EXPECT_EQ(answers, expected);

  // Wider pages hold it.
  for (DType dtype : {DType::kFloat32, DType::kBFloat16})
    EXPECT_TRUE(Serve(dtype, all)[9].error.ok()) << NameOf(dtype);
}

TEST_F(ModelExecutorTest, StatesAndWindowsSurvivePreemptionsAndSnapshots) {
  model_dir_ = GoldenCasesDir() + "/phi4flash_stored_lm_head_shards";
  options_.max_num_seqs = 3;
  options_.window = 7;
  options_.num_state_slots = options_.MaxRunning() + 4;
  options_.num_window_pages = static_cast<int>(options_.WindowPagesMin(options_.MaxRunning())) + 8;
  options_.state_snapshot_interval = options_.page_size;
  std::vector<Request> requests;
  for (RequestId id = 1; id <= 6; ++id) {
    requests.push_back(MakeRequest(id % 2, 20));  // two prompts, three seeds each
    requests.back().id = requests.back().sampling.seed = id;
    requests.back().max_tokens = 60;
  }

  std::map<RequestId, ExecutedAnswer> alone;
  options_.enable_prefix_caching = false;
  for (const Request& request : requests) alone.merge(Serve(DType::kBFloat16, {request}));
  options_.enable_prefix_caching = true;
  options_.num_pages = 12;  // three sequences need up to seven each
  EXPECT_EQ(Serve(DType::kBFloat16, requests), alone);
  EXPECT_GT(stats_.preemptions, 0u);
  EXPECT_GT(stats_.snapshots_resumed, 0u);
}

}  // namespace
}  // namespace diffserve
