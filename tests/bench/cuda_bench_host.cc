// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/cuda_bench_host.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "engine/engine_loop.h"
#include "engine/inbox.h"
#include "engine/model_executor.h"
#include "kernels/attention/attention_plan_cuda.h"
#include "kernels/base/thread_pool.h"
#include "models/model.h"
#include "tests/bench/cuda_bench_timing.h"
#if defined(DIFFSERVE_CUDA_ON_CPU)
#include "tests/kernels/shim/host_calls.h"
#endif

namespace diffserve::bench {
namespace {

using Clock = std::chrono::steady_clock;
using cuda::kImagePageSize;

constexpr char kConfig[] = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
  "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 1, "num_hidden_layers": 1,
  "intermediate_size": 64, "vocab_size": 128, "max_position_embeddings": 8192,
  "rms_norm_eps": 1e-6, "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2})";
constexpr int kOutputTokens = 1024;

double MicrosSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

struct Times {
  double forward_us = 0, collect_us = 0;
};

// The model, with the time in its calls. Draws always give the same token, so that no sequence ends
// where kernels do not run.
class TimedModel : public Model {
 public:
  TimedModel(std::unique_ptr<Model> model, Times& times)
      : model_(std::move(model)), times_(times) {}

  const ModelConfig& config() const override { return model_->config(); }
  WeightFormat weight_format() const override { return model_->weight_format(); }
  int steps_in_flight_max() const override { return model_->steps_in_flight_max(); }
  Result<KvCache> MakeKvCache(std::vector<KvFormat> layers,
                              const KvCacheSize& size) const override {
    return model_->MakeKvCache(std::move(layers), size);
  }
  Status Forward(const Batch& batch, KvCache& kv) override {
    const Clock::time_point begin = Clock::now();
    Status status = model_->Forward(batch, kv);
    times_.forward_us += MicrosSince(begin);
    return status;
  }
  Result<std::vector<SampledToken>> Collect() override {
    const Clock::time_point begin = Clock::now();
    Result<std::vector<SampledToken>> drawn = model_->Collect();
    if (drawn.ok()) {
      for (SampledToken& token : *drawn) token.token = token.finite = 1;
    }
    times_.collect_us += MicrosSince(begin);
    return drawn;
  }
  Result<std::span<const float>> Logits(int first, int count) override {
    return model_->Logits(first, count);
  }
  std::vector<float> Lambdas() const override { return model_->Lambdas(); }
  size_t weight_bytes() const override { return model_->weight_bytes(); }
  int64_t num_parameters() const override { return model_->num_parameters(); }

 private:
  const std::unique_ptr<Model> model_;
  Times& times_;
};

EngineOptions OptionsFor(int sequences, int prompt_tokens) {
  EngineOptions options;
  options.page_size = kImagePageSize;
  options.max_model_len = prompt_tokens + kOutputTokens;
  options.num_pages = sequences * static_cast<int>(PagesFor(options.max_model_len, kImagePageSize));
  options.max_waiting_tokens = int64_t{2} * sequences * prompt_tokens;
  options.enable_prefix_caching = true;
  return options;
}

std::unique_ptr<Executor> MakeExecutor(const EngineOptions& options, ThreadPool& pool,
                                       Times& times) {
  ModelOptions of_model;
  of_model.model_dir = std::filesystem::temp_directory_path().string();  // nothing is read there
  of_model.config_text = kConfig;
  of_model.dummy_weights = true;
  of_model.device = Device::kCuda;
  of_model.limits = {options.max_num_batched_tokens, options.max_num_seqs, options.max_model_len};
  auto model = std::make_unique<TimedModel>(Must(Model::Load(of_model, pool)), times);
  const KvFormat format = cuda::ImageFormat(model->config().attention);
  KvCache kv = Must(model->MakeUniformKvCache(format, {.num_pages = options.num_pages}));
  return std::make_unique<ModelExecutor>(std::move(model), std::move(kv));
}

Request RequestOf(int id, int prompt_tokens) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < prompt_tokens; ++i) prompt.push_back((i * (id + 1) + id) % 127);
  Request request;
  request.id = static_cast<RequestId>(id);
  request.prompt = std::move(prompt);
  request.max_tokens = kOutputTokens;
  return request;
}

void Measure(int sequences, bool smoke,
             const std::function<void(const std::string&, double)>& add) {
  const int prompt_tokens = smoke ? 2 * kImagePageSize : 4096;
  const EngineOptions options = OptionsFor(sequences, prompt_tokens);
  ThreadPool pool({.num_threads = 1});
  Times times;
  Inbox inbox(options);
  EngineStats published;
  int tokens = 0;
  EngineLoop loop(options, MakeExecutor(options, pool, times), inbox,
                  {.now = [] { return Clock::now(); },
                   .deliver = [&](const TokenEvent& event) { tokens += !event.tokens.empty(); },
                   .publish = [&](const EngineStats& stats) { published = stats; },
                   .kv_events = nullptr});
  for (int id = 0; id < sequences; ++id) Must(inbox.Submit(RequestOf(id, prompt_tokens)));
  while (published.last_step_tokens != sequences || published.steps == 0 || tokens < sequences)
    loop.Turn();
  const int turns = smoke ? 2 : 500;
  std::vector<double> turn_us, launch_us;
  for (int turn = 0; turn < turns; ++turn) {
    times = {};
    const Clock::time_point begin = Clock::now();
    loop.Turn();
    turn_us.push_back(MicrosSince(begin) - times.collect_us);
    launch_us.push_back(times.forward_us);
  }
  const std::string suffix = "_us_batch_" + std::to_string(sequences);
  add("host" + suffix, Median(turn_us));
  add("host_launch" + suffix, Median(launch_us));
}

}  // namespace

void AddHostFigures(bool smoke, const std::function<void(const std::string&, double)>& add) {
#if defined(DIFFSERVE_CUDA_ON_CPU)
  shim::simulated_device.runs_kernels = false;
#endif
  for (int sequences : {1, 64, 256}) Measure(sequences, smoke, add);
#if defined(DIFFSERVE_CUDA_ON_CPU)
  shim::simulated_device.runs_kernels = true;
#endif
}

}  // namespace diffserve::bench
