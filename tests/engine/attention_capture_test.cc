// SPDX-License-Identifier: Apache-2.0
// Attention captures through the whole engine over the real executor. A capture has the same bits
// for any batch and chunks, after prefix hits and after preemptions, and it changes no other
// request's answer.
#include "models/diagnostics/attention_capture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>

#include "engine/engine.h"
#include "engine/model_executor.h"
#include "tests/testing/engine/step_gate.h"
#include "tests/testing/models/checkpoint_writer.h"

namespace diffserve {
namespace {

constexpr int kPromptTokens = 75;
constexpr int kPageSize = 16;

struct CapturedAnswer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  int cached_tokens = 0;
  Status error;
  friend bool operator==(const CapturedAnswer& a, const CapturedAnswer& b) {
    return a.tokens == b.tokens && a.logprobs == b.logprobs && a.error.ok() == b.error.ok();
  }
};

// An engine that serves lists of requests, each list in one batch.
class ServedModel {
 public:
  ServedModel(const std::string& model_dir, ThreadPool& pool, EngineOptions options) {
    ModelOptions model_options;
    model_options.model_dir = model_dir;
    std::unique_ptr<Model> model = std::move(Model::Load(model_options, pool)).value();
    source.spec = model->config().attention;
    source.layers.assign(static_cast<size_t>(model->config().num_layers),
                         KvFormat::Of(source.spec, kPageSize, DType::kFloat32));
    KvCache kv = model->MakeKvCache(source.layers, {options.num_pages}).value();
    engine_ = std::make_unique<Engine>(
        options,
        std::make_unique<testing::GatedExecutor>(
            std::make_unique<ModelExecutor>(std::move(model), std::move(kv)), gate_),
        [this](TokenEvent event) { Take(std::move(event)); });
  }

  std::map<RequestId, CapturedAnswer> Serve(const std::vector<Request>& requests) {
    {
      std::lock_guard lock(mutex_);
      answers_.clear();
      ended_ = 0;
    }
    gate_.Close();
    for (const Request& request : requests) EXPECT_TRUE(engine_->Submit(request).ok());
    gate_.Open();
    std::unique_lock lock(mutex_);
    all_ended_.wait(lock, [&] { return ended_ == requests.size(); });
    return answers_;
  }
  EngineStats Stats() const { return engine_->Snapshot(); }

  AttentionSource source;

 private:
  void Take(TokenEvent event) {
    std::lock_guard lock(mutex_);
    CapturedAnswer& answer = answers_[event.request];
    answer.tokens.insert(answer.tokens.end(), event.tokens.begin(), event.tokens.end());
    for (const SampleResult& result : event.logprobs) answer.logprobs.push_back(result.logprob);
    answer.cached_tokens = std::max(answer.cached_tokens, event.cached_tokens);
    if (event.finish == FinishReason::kNone) return;
    answer.error = event.error;
    ++ended_;
    all_ended_.notify_one();
  }

  std::mutex mutex_;
  std::condition_variable all_ended_;
  std::map<RequestId, CapturedAnswer> answers_;
  size_t ended_ = 0;
  testing::StepGate gate_{testing::StepGate::State::kOpen};
  std::unique_ptr<Engine> engine_;  // declared last: its thread uses all members above
};

class EngineCaptureTest : public ::testing::Test {
 protected:
  static EngineOptions Roomy() {
    return {.page_size = kPageSize,
            .num_pages = 64,
            .max_model_len = 256,
            .max_num_batched_tokens = 1024};
  }

  static Request MakeRequest(RequestId id, int max_tokens) {
    Request request;
    request.id = id;
    std::vector<int32_t> prompt;
    for (int i = 0; i < kPromptTokens; ++i)
      prompt.push_back(static_cast<int32_t>((static_cast<int>(id) * 11 + i * i) % 80 + 20));
    request.prompt = prompt;
    request.max_tokens = max_tokens;
    request.sampling.ignore_eos = true;
    request.sampling.temperature = 0;
    request.sampling.num_logprobs = 1;
    return request;
  }

  static Request Capturing(Request request, const AttentionSource& source,
                           std::vector<int> positions) {
    std::vector<int> layers;
    for (int layer = 0; layer < source.num_layers(); ++layer) layers.push_back(layer);
    const auto capture = std::make_shared<AttentionCapture>(
        source, AttentionCapture::Selection{layers, std::move(positions)});
    capture->Reserve();
    request.AddObserver(capture);
    return request;
  }

  static const AttentionCapture& CaptureOf(const Request& request) {
    return dynamic_cast<const AttentionCapture&>(*request.observers.front());
  }
  // The weights of all maps.
  static std::vector<double> WeightsOf(const Request& request, const AttentionSource& source) {
    const AttentionCapture& capture = CaptureOf(request);
    EXPECT_TRUE(capture.is_complete());
    std::vector<double> all;
    for (size_t layer = 0; layer < capture.selection().layers.size(); ++layer) {
      for (int head = 0; head < source.spec.num_q1_heads; ++head) {
        const GroupKeys keys = capture.KeysOf(layer, GroupOf(source.spec, head));
        for (size_t i = 0; i < capture.selection().positions.size(); ++i) {
          const std::vector<double> w = capture.MapsOf(layer, i, head, keys).w;
          all.insert(all.end(), w.begin(), w.end());
        }
      }
    }
    return all;
  }

  // The request by itself, in one chunk, on its own engine.
  std::vector<double> Expected(RequestId id, const std::vector<int>& positions) {
    ServedModel served(checkpoint_.dir(), pool_, Roomy());
    const Request request = Capturing(MakeRequest(id, 0), served.source, positions);
    served.Serve({request});
    return WeightsOf(request, served.source);
  }

  TinyCheckpoint checkpoint_;
  ThreadPool pool_{{.num_threads = 1, .pin = false, .spin_us = 0}};
};

TEST_F(EngineCaptureTest, RequestWithoutOutputEndsWhenItsPromptIsComputed) {
  ServedModel served(checkpoint_.dir(), pool_, Roomy());
  const Request request = Capturing(MakeRequest(1, 0), served.source, {0, 74});
  const CapturedAnswer answer = served.Serve({request}).at(1);
  EXPECT_TRUE(answer.error.ok());
  EXPECT_TRUE(answer.tokens.empty());
  EXPECT_TRUE(CaptureOf(request).is_complete());
}

TEST_F(EngineCaptureTest, CaptureAndAnswersAreBitwiseIndependentOfChunksAndBatch) {
  const std::vector<int> positions = {0, 20, 47, 48, 74};
  const std::vector<double> expected = Expected(1, positions);
  EngineOptions options = Roomy();
  options.max_num_batched_tokens = 24;
  ServedModel served(checkpoint_.dir(), pool_, options);
  const std::vector<Request> others = {MakeRequest(2, 20), MakeRequest(3, 20)};
  const std::map<RequestId, CapturedAnswer> alone = served.Serve(others);

  ServedModel beside(checkpoint_.dir(), pool_, options);
  std::vector<Request> all = others;
  const Request request = Capturing(MakeRequest(1, 0), beside.source, positions);
  all.insert(all.begin() + 1, request);
  std::map<RequestId, CapturedAnswer> answers = beside.Serve(all);
  answers.erase(1);
  EXPECT_TRUE(answers == alone);
  EXPECT_EQ(WeightsOf(request, beside.source), expected);
}

TEST_F(EngineCaptureTest, CaptureDoesNotChangeTheOutput) {
  ServedModel served(checkpoint_.dir(), pool_, Roomy());
  const std::map<RequestId, CapturedAnswer> plain = served.Serve({MakeRequest(1, 20)});
  ServedModel captured(checkpoint_.dir(), pool_, Roomy());
  const Request request = Capturing(MakeRequest(1, 20), captured.source, {kPromptTokens - 1});
  EXPECT_TRUE(captured.Serve({request}) == plain);
  EXPECT_EQ(WeightsOf(request, captured.source), Expected(1, {kPromptTokens - 1}));
}

TEST_F(EngineCaptureTest, PrefixHitEndsBeforeTheFirstCapturedPosition) {
  ServedModel served(checkpoint_.dir(), pool_, Roomy());
  served.Serve({MakeRequest(1, 1)});
  RequestId copies = 100;
  for (const auto& [positions, cached] : std::map<std::vector<int>, int>{
           {{0, 74}, 0}, {{15}, 0}, {{16}, 16}, {{40, 74}, 32}, {{64}, 64}, {{74}, 64}}) {
    Request request = Capturing(MakeRequest(1, 0), served.source, positions);
    request.id = ++copies;
    EXPECT_EQ(served.Serve({request}).at(request.id).cached_tokens, cached) << positions.front();
    EXPECT_EQ(WeightsOf(request, served.source), Expected(1, positions));
  }
}

TEST_F(EngineCaptureTest, CaptureIsBitwiseTheSameAfterPreemption) {
  const std::vector<int> positions = {3, 74};
  const std::vector<double> expected = Expected(2, positions);
  EngineOptions options = Roomy();
  options.num_pages = 11;  // for one of them to its end, and the other's prompt
  options.max_num_batched_tokens = 40;
  ServedModel served(checkpoint_.dir(), pool_, options);
  const Request request = Capturing(MakeRequest(2, 60), served.source, positions);
  const std::map<RequestId, CapturedAnswer> answers = served.Serve({MakeRequest(1, 60), request});
  EXPECT_GT(served.Stats().preemptions, 0u);
  EXPECT_EQ(answers.at(2).tokens.size(), 60u);
  EXPECT_EQ(WeightsOf(request, served.source), expected);
}

}  // namespace
}  // namespace diffserve
