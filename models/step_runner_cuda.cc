// SPDX-License-Identifier: Apache-2.0
#include "models/step_runner_cuda.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/process/check.h"
#include "models/decode_graphs_cuda.h"
#include "models/device_transfer_cuda.h"
#include "models/step_observer_cuda.h"
#include "models/step_transfer_cuda.h"
#include "models/warm_up_cuda.h"

namespace diffserve::cuda {
namespace {

class StepRunner : public Model {
 public:
  StepRunner(std::unique_ptr<Stream> stream, Decoder::Parts parts, StepRunnerOptions options)
      : stream_(std::move(stream)),
        decoder_(std::move(parts), *stream_),
        options_(std::move(options)) {}
  ~StepRunner() override {
    // Buffers must outlive the device's work on them. An error here was already reported by an
    // earlier call.
    static_cast<void>(stream_->Synchronize());
  }
  Status TakeMemory() {
    DS_RETURN_IF_ERROR(Assign(&upload_, StepUpload::Create()));
    return Assign(&results_, StepResults::Create(options_.limits.num_tokens));
  }

  const ModelConfig& config() const override { return decoder_.config(); }
  WeightFormat weight_format() const override { return WeightFormat::kBFloat16; }
  int steps_in_flight_max() const override { return kStepsInFlightMax; }
  Result<KvCache> MakeKvCache(std::vector<KvFormat> layers, const KvCacheSize& size) const override;
  Status Forward(const Batch& batch, KvCache& kv) override { return Named(Launch(batch, kv)); }
  Result<std::vector<SampledToken>> Collect() override {
    DS_RETURN_IF_ERROR(stream_->UseDevice());
    Result<std::vector<SampledToken>> drawn = results_.Collect();
    return drawn.ok() ? std::move(drawn) : Named(drawn.status());
  }
  Result<std::span<const float>> Logits(int first, int count) override;
  Status WarmUp(KvCache& kv) override;
  std::vector<float> Lambdas() const override { return decoder_.Lambdas(); }
  size_t weight_bytes() const override { return options_.sizes.step_bytes; }
  int64_t num_parameters() const override { return options_.sizes.num_parameters; }

 private:
  // With the device in the error that says that it is lost.
  Status Named(Status status) const {
    if (!IsDeviceLost(status)) return status;
    return Status(status.code(), options_.name + ": " + status.message());
  }
  Status Launch(const Batch& batch, KvCache& kv);
  Status RunDecode(const DeviceStep& step, int rows_per_tile, KvCache& kv);

  const std::unique_ptr<Stream> stream_;
  Decoder decoder_;
  const StepRunnerOptions options_;
  StepUpload upload_;
  StepResults results_;
  DecodeGraphs graphs_;
  PackedStep packed_;
  int num_logit_rows_ = 0;        // of the last Forward
  bool has_run_prompts_ = false;  // in WarmUp
  std::vector<float> host_logits_;
};

Result<KvCache> StepRunner::MakeKvCache(std::vector<KvFormat> layers,
                                        const KvCacheSize& size) const {
  for (KvFormat& format : layers) {
    const KvFormat image = ImageFormat(config().attention, format.codec.dtype);
    DS_CHECK(format.page_size == image.page_size &&
                 DiffAttentionUnsupported(config().attention, image) == nullptr,
             "CUDA pages are 64 slots of a format that attention has kernels for");
    format = image;
  }
  DS_RETURN_IF_ERROR(stream_->UseDevice());
  KvCache::Layout layout = LayoutOf(config(), std::move(layers), size);
  Result<DeviceBuffer> memory = DeviceBuffer::Allocate(layout.Bytes());
  if (!memory.ok()) return memory.status();
  const auto owner = std::make_shared<DeviceBuffer>(std::move(*memory));
  Result<std::shared_ptr<DeviceTransfer>> transfer = MakeTransfer(*stream_);
  if (!transfer.ok()) return transfer.status();
  return KvCache(std::move(layout), {std::shared_ptr<std::byte>(owner, owner->as<std::byte>()),
                                     [stream = stream_.get()](const std::byte* from, std::byte* to,
                                                              size_t size_bytes) {
                                       DS_RETURN_IF_ERROR(stream->UseDevice());
                                       return CopyOnDevice(from, to, size_bytes, *stream);
                                     },
                                     std::move(*transfer)});
}

Status StepRunner::Launch(const Batch& batch, KvCache& kv) {
  DS_RETURN_IF_ERROR(stream_->UseDevice());
  const size_t num_draws = batch.sample_rows.size();
  DS_CHECK(batch.tokens.size() <= static_cast<size_t>(options_.limits.num_tokens),
           "a step within the limit of tokens");
  DS_CHECK(num_draws == 0 || num_draws == batch.logit_rows.size(),
           "one sample row for each row of logits");
  const DiffSpec& spec = config().attention;
  const int generated_max = std::max(1, GeneratedTokensMax(batch));
  const AttentionTiling tiling = DiffDecodeTiling(spec, generated_max);
  const std::vector<StepPass> passes = CutIntoPasses(
      batch, tiling, decoder_.work().GeneratedItemsMax(spec, tiling));
  const StepNeeds needs = StepNeeds::Of(config());
  const std::vector<StepTilings> tilings = TilingsOf(config(), generated_max);
  std::optional<StepObserver> observer;
  if (batch.observer != nullptr) observer.emplace(batch, config(), *stream_);
  const int graph_tokens = passes.size() == 1 && IsDecode(batch, needs) && !observer
                               ? GraphTokens(batch.tokens.size(), options_.limits.num_sequences)
                               : 0;
  num_logit_rows_ = 0;
  for (const StepPass& pass : passes) {
    const bool is_last = &pass == &passes.back();
    PackStep(batch, pass,
             {.needs = needs,
              .tilings = tilings,
              .page_size = kImagePageSize,
              .prompt_pages_max = decoder_.work().PromptPagesMax(),
              .draws = is_last,
              .num_padded = graph_tokens},
             &packed_);
    DS_RETURN_IF_ERROR(upload_.Copy(packed_, *stream_));
    const DeviceStep step(packed_.shape, upload_.memory(), tilings);
    if (graph_tokens > 0) {
      DS_RETURN_IF_ERROR(RunDecode(step, tiling.rows_per_tile, kv));
    } else {
      if (observer) observer->BeginPass(packed_);
      DS_RETURN_IF_ERROR(
          decoder_.Forward(step, kv, num_logit_rows_, observer ? &*observer : nullptr));
      if (is_last) DS_RETURN_IF_ERROR(decoder_.SampleAll(step));
    }
    num_logit_rows_ += step.num_logit_rows;
  }
  if (observer) observer->End();
  num_logit_rows_ = static_cast<int>(batch.logit_rows.size());  // without a graph's padding
  if (num_draws == 0 && !batch.is_collected) return Status();
  return results_.Queue(decoder_.work().sampled, num_draws, *stream_);
}

Status StepRunner::RunDecode(const DeviceStep& step, int rows_per_tile, KvCache& kv) {
  const DecodeGraphs::Memory memory = {upload_.memory(), kv.Layer(0).base, kv.StatesFrom(0).data,
                                       kv.layout().Bytes()};
  const DecodeGraphs::Kind kind = {step.rows.all.num_tokens, rows_per_tile};
  return graphs_.Run(kind, memory, *stream_, [&] {
    DS_RETURN_IF_ERROR(decoder_.Forward(step, kv, 0));
    return decoder_.SampleAll(step);
  });
}

Status StepRunner::WarmUp(KvCache& kv) {
  if (!has_run_prompts_) DS_RETURN_IF_ERROR(RunUsualPrompts(*this, options_.limits, kv));
  has_run_prompts_ = true;
  return RunUsualDecodes(*this, options_.limits, kv);
}

Result<std::span<const float>> StepRunner::Logits(int first, int count) {
  DS_CHECK(first >= 0 && count >= 0 && count <= num_logit_rows_ - first,
           "logits of rows that the last Forward did not keep");
  DS_RETURN_IF_ERROR(stream_->UseDevice());
  const size_t vocab = static_cast<size_t>(config().vocab_size);
  host_logits_.resize(std::max(host_logits_.size(), static_cast<size_t>(count) * vocab));
  const Workspace& work = decoder_.work();
  for (int done = 0; done < count; done += work.logits_rows) {
    const int rows = std::min(work.logits_rows, count - done);
    DS_RETURN_IF_ERROR(decoder_.LogitsOf(first + done, rows));
    const auto to = std::span(host_logits_)
                        .subspan(static_cast<size_t>(done) * vocab,
                                 static_cast<size_t>(rows) * vocab);
    DS_RETURN_IF_ERROR(CopyToHost(work.logits, 0, std::as_writable_bytes(to), *stream_));
  }
  DS_RETURN_IF_ERROR(stream_->Synchronize());
  return std::span<const float>(host_logits_.data(), static_cast<size_t>(count) * vocab);
}

}  // namespace

Result<std::unique_ptr<Model>> MakeStepRunner(std::unique_ptr<Stream> stream, Decoder::Parts parts,
                                              StepRunnerOptions options) {
  auto runner = std::make_unique<StepRunner>(std::move(stream), std::move(parts),
                                             std::move(options));
  DS_RETURN_IF_ERROR(runner->TakeMemory());
  return std::unique_ptr<Model>(std::move(runner));
}

}  // namespace diffserve::cuda
