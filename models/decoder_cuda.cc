#include "models/decoder_cuda.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <map>
#include <utility>

#include "kernels/attention/attention_plan_cuda.h"
#include "kernels/attention/diff_attention.h"
#include "kernels/base/check.h"
#include "kernels/base/cuda/device.h"
#include "kernels/base/cuda/graph.h"
#include "kernels/base/log.h"
#include "kernels/ops/linear_cuda.h"
#include "kernels/ops/rope_append.h"
#include "kernels/ops/rowwise_cuda.h"
#include "kernels/ops/sample_cuda.h"
#include "models/step_batch_cuda.h"
#include "models/weights_cuda.h"
#include "models/workspace_cuda.h"

namespace diffserve::cuda {
namespace {

constexpr int kStepsInFlightMax = 2;
constexpr int kWarmUpSequences = 2;
constexpr size_t kStepBytes = size_t{1} << 20;  // of a packed step, to begin with

void Complete(const ModelConfig& config, StepLimits* limits) {
  limits->num_sequences = std::max(limits->num_sequences, kWarmUpSequences);
  limits->num_rows = std::max(limits->num_rows, limits->num_sequences);
  if (limits->max_model_len == 0) limits->max_model_len = config.max_positions;
}

class Decoder : public Model {
 public:
  explicit Decoder(DecoderOptions options) : options_(std::move(options)) {}
  ~Decoder() override {
    // Buffers outlive what the device still does with them; an error here has been told by the call
    // that met it.
    if (stream_ != nullptr) static_cast<void>(stream_->Synchronize());
  }

  Status Load(Checkpoint& checkpoint);

  const ModelConfig& config() const override { return options_.config; }
  DType dtype() const override { return DType::kBFloat16; }
  int steps_in_flight_max() const override { return kStepsInFlightMax; }
  Result<KvCache> MakeKvCache(const KvFormat& format, int num_pages) const override;
  Status Forward(const Batch& batch, KvCache& kv) override;
  Result<std::vector<SampledRow>> Collect() override;
  Result<std::span<const float>> Logits(int first, int count) override;
  Status CopyPage(KvCache& kv, int32_t from, int32_t to) override;
  std::vector<float> Lambdas() const override;
  size_t weight_bytes() const override { return options_.sizes.step_bytes; }
  int64_t num_parameters() const override { return options_.sizes.num_parameters; }

 private:
  // Host memory that a copy reads or writes, free again when its event is done.
  struct Pinned {
    PinnedBuffer buffer;
    std::unique_ptr<Event> done;
  };
  struct DecodeGraph {
    std::unique_ptr<Graph> graph;
    int attempts_left = 2;  // to record it
  };
  struct Launched {
    size_t slot;  // of results_
    size_t count;
  };

  Status TakeBuffers();
  Status WarmUp();
  Status Upload(const PackedStep& step);
  Status RunPass(const StepShape& shape, KvCache& kv, const AttentionTiling& tiling,
                 int first_logit);
  Status RunLayer(const DeviceLayer& layer, const DeviceStep& step, const PagedKv& kv,
                  const AttentionTiling& tiling);
  Status Attend(const DeviceLayer& layer, const DeviceStep& step, const PagedKv& kv,
                const AttentionTiling& tiling);
  Status RunMlp(const DeviceLayer& layer, int rows);
  Status SampleAll(const StepShape& shape, int count);
  Status RunDecode(const PackedStep& step, KvCache& kv, const AttentionTiling& tiling);
  Status QueueResults(size_t count);
  Status Norm(const DeviceBuffer& weight, int rows);
  Status Linear(const DeviceLinear& layer, const DeviceBuffer& x, int rows, const DeviceBuffer& y,
                DType y_dtype, bool accumulate);
  Status HeadLogits(int first, int count);

  const DecoderOptions options_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<MatrixLibrary> matrices_;
  DeviceWeights weights_;
  DeviceBuffer cos_, sin_;  // [positions, head_dim / 2]
  RopeAngles rope_;         // of them
  Workspace work_;
  DeviceBuffer step_memory_;
  std::array<Pinned, kStepsInFlightMax> uploads_, results_;
  size_t next_upload_ = 0, next_result_ = 0;
  std::deque<Launched> launched_;
  PackedStep packed_;
  std::map<int, DecodeGraph> graphs_;           // by rows; an entry has run once outside a graph
  std::pair<const std::byte*, int> graphs_kv_;  // the pages that the graphs use
  int num_logit_rows_ = 0;                      // of the last Forward
  std::vector<float> host_logits_;
};

template <typename T, typename... Arguments>
Status Make(std::unique_ptr<T>* made, Result<T> result) {
  if (!result.ok()) return result.status();
  *made = std::make_unique<T>(std::move(*result));
  return Status();
}

Status Decoder::Load(Checkpoint& checkpoint) {
  const ModelConfig& config = options_.config;
  const Result<DeviceInfo> device = OpenDevice(0);
  if (!device.ok()) return device.status();
  DS_RETURN_IF_ERROR(Make(&stream_, Stream::Create()));
  MatrixLibraryOptions matrix_options;
  matrix_options.batch_invariant = options_.batch_invariant;
  Result<std::unique_ptr<MatrixLibrary>> matrices = MatrixLibrary::Open(matrix_options);
  if (!matrices.ok()) return matrices.status();
  matrices_ = std::move(*matrices);
  Result<DeviceWeights> weights = UploadWeights(config, checkpoint, *stream_);
  if (!weights.ok()) return weights.status();
  weights_ = std::move(*weights);
  DS_RETURN_IF_ERROR(TakeBuffers());
  return WarmUp();
}

Status Decoder::TakeBuffers() {
  const ModelConfig& config = options_.config;
  const RopeTable rope(InverseFrequencies(config.rope, config.attention.head_dim),
                       options_.max_positions, config.rope.attention_factor);
  rope_ = rope.angles();
  const size_t angles = static_cast<size_t>(rope_.num_positions) *
                        static_cast<size_t>(rope_.half_dim);
  for (const auto& [buffer, values] :
       {std::pair(&cos_, &rope_.cos), std::pair(&sin_, &rope_.sin)}) {
    Result<DeviceBuffer> taken = DeviceBuffer::Allocate(angles * sizeof(float));
    if (!taken.ok()) return taken.status();
    *buffer = std::move(*taken);
    DS_RETURN_IF_ERROR(
        CopyToDevice(std::as_bytes(std::span(*values, angles)), *buffer, 0, *stream_));
    *values = buffer->as<float>();
  }
  Result<Workspace> work = Workspace::Allocate(config, options_.limits);
  if (!work.ok()) return work.status();
  work_ = std::move(*work);
  for (auto* ring : {&uploads_, &results_}) {
    for (Pinned& pinned : *ring) DS_RETURN_IF_ERROR(Make(&pinned.done, Event::Create()));
  }
  for (Pinned& result : results_) {
    Result<PinnedBuffer> buffer = PinnedBuffer::Allocate(
        static_cast<size_t>(options_.limits.num_rows) * sizeof(SampledRow));
    if (!buffer.ok()) return buffer.status();
    result.buffer = std::move(*buffer);
  }
  // The first step's work reaches no memory that was never written, but for pages.
  for (const DeviceBuffer* buffer : {&work_.normed, &work_.attention, &work_.sampled}) {
    DS_RETURN_IF_ERROR(FillBytes(*buffer, std::byte{0}, *stream_));
  }
  return stream_->Synchronize();
}

// A prompt row and a generated row, both with a draw: what can fail on this device fails now.
Status Decoder::WarmUp() {
  Result<KvCache> kv = MakeKvCache(ImageFormat(options_.config.attention), 2);
  if (!kv.ok()) return kv.status();
  const int32_t pages[] = {0, 1};
  Batch batch;
  batch.tokens = {0, 0};
  batch.sequences = {{0, 1, 0, &pages[0]}, {1, 1, 0, &pages[1]}};
  batch.logit_rows = {0, 1};
  batch.num_prompt_rows = {1, 0};
  batch.sample_rows = {{.kind = SampleKind::kGreedy}, {.kind = SampleKind::kGreedy}};
  DS_RETURN_IF_ERROR(Forward(batch, *kv));
  const Result<std::vector<SampledRow>> sampled = Collect();
  return sampled.ok() ? Status() : sampled.status();
}

Result<KvCache> Decoder::MakeKvCache(const KvFormat& format, int num_pages) const {
  const KvFormat image = ImageFormat(options_.config.attention);
  DS_CHECK(format.page_size == image.page_size && format.codec.dtype == image.codec.dtype,
           "CUDA pages are 64 slots of bfloat16");
  const int num_layers = options_.config.num_layers;
  Result<DeviceBuffer> memory = DeviceBuffer::Allocate(KvCache::BytesPerPage(image, num_layers) *
                                                       static_cast<size_t>(num_pages));
  if (!memory.ok()) return memory.status();
  const auto owner = std::make_shared<DeviceBuffer>(std::move(*memory));
  return KvCache(image, num_layers, num_pages,
                 std::shared_ptr<std::byte>(owner, owner->as<std::byte>()));
}

Status Decoder::CopyPage(KvCache& kv, int32_t from, int32_t to) {
  for (int layer = 0; layer < kv.num_layers(); ++layer) {
    const PagedKv pages = kv.Layer(layer);
    DS_RETURN_IF_ERROR(CopyOnDevice(pages.Page(from, 0), pages.Page(to, 0),
                                    KvCache::BytesPerPage(kv.format(), 1), *stream_));
  }
  return Status();
}

Status Decoder::Forward(const Batch& batch, KvCache& kv) {
  const size_t num_samples = batch.sample_rows.size();
  DS_CHECK(batch.tokens.size() <= static_cast<size_t>(options_.limits.num_rows),
           "a step within the limit of rows");
  DS_CHECK(batch.sequences.size() <= static_cast<size_t>(options_.limits.num_sequences),
           "a step within the limit of sequences");
  DS_CHECK(num_samples == 0 || num_samples == batch.logit_rows.size(),
           "one sample row for each row of logits");
  DS_CHECK(launched_.size() < kStepsInFlightMax, "too many steps in flight");
  const AttentionTiling tiling = DiffDecodeTiling(options_.config.attention,
                                                  std::max(1, GeneratedRowsMax(batch)));
  const std::vector<StepPass> passes = CutIntoPasses(
      batch, tiling, work_.GeneratedItemsMax(options_.config.attention, tiling));
  const int graph_rows = passes.size() == 1 && IsDecode(batch)
                             ? GraphRows(batch.tokens.size(), options_.limits.num_sequences)
                             : 0;
  const bool in_graph = graph_rows > 0;
  num_logit_rows_ = 0;
  for (const StepPass& pass : passes) {
    const bool is_last = &pass == &passes.back();
    PackStep(batch, pass, kImagePageSize, /*samples=*/is_last, graph_rows, &packed_);
    DS_RETURN_IF_ERROR(Upload(packed_));
    if (in_graph) {
      DS_RETURN_IF_ERROR(RunDecode(packed_, kv, tiling));
    } else {
      DS_RETURN_IF_ERROR(RunPass(packed_.shape, kv, tiling, num_logit_rows_));
    }
    num_logit_rows_ += packed_.shape.num_logit_rows;
  }
  num_logit_rows_ = static_cast<int>(batch.logit_rows.size());
  if (num_samples == 0 && !batch.is_collected) return Status();
  if (!in_graph && num_samples > 0)
    DS_RETURN_IF_ERROR(SampleAll(packed_.shape, static_cast<int>(num_samples)));
  return QueueResults(num_samples);
}

// Memory grows rarely: to the largest step seen, by page tables and adjustments.
Status Decoder::Upload(const PackedStep& step) {
  const size_t bytes = step.bytes.size();
  Pinned& staging = uploads_[next_upload_++ % uploads_.size()];
  if (next_upload_ > uploads_.size()) DS_RETURN_IF_ERROR(staging.done->Wait());
  if (staging.buffer.size_bytes() < bytes) {
    Result<PinnedBuffer> larger = PinnedBuffer::Allocate(std::max(bytes + bytes / 4, kStepBytes));
    if (!larger.ok()) return larger.status();
    staging.buffer = std::move(*larger);
  }
  if (step_memory_.size_bytes() < bytes) {
    DS_RETURN_IF_ERROR(stream_->Synchronize());
    graphs_.clear();
    step_memory_ = DeviceBuffer();
    Result<DeviceBuffer> larger = DeviceBuffer::Allocate(std::max(bytes + bytes / 4, kStepBytes));
    if (!larger.ok()) return larger.status();
    step_memory_ = std::move(*larger);
  }
  std::copy(step.bytes.begin(), step.bytes.end(), staging.buffer.as<std::byte>());
  DS_RETURN_IF_ERROR(CopyToDevice(staging.buffer.bytes().first(bytes), step_memory_, 0, *stream_));
  return stream_->Record(*staging.done);
}

// A size of decode runs once as it is, which loads its kernels and chooses its products, and from
// then on as a graph. Where it cannot be recorded now (cuBLASLt must choose a product's kernel
// again and does not do so then, no memory for the graph) it runs as it is.
Status Decoder::RunDecode(const PackedStep& step, KvCache& kv, const AttentionTiling& tiling) {
  const std::pair<const std::byte*, int> pages = {kv.Layer(0).base, kv.num_pages()};
  if (graphs_kv_ != pages) graphs_.clear();
  graphs_kv_ = pages;
  const auto queue = [&] {
    DS_RETURN_IF_ERROR(RunPass(step.shape, kv, tiling, 0));
    return SampleAll(step.shape, step.shape.num_sample_rows);
  };
  const auto [found, is_new] = graphs_.try_emplace(step.shape.num_rows);
  DecodeGraph& decode = found->second;
  if (!is_new && decode.graph == nullptr && decode.attempts_left > 0) {
    if (const Status made = Make(&decode.graph, Graph::Capture(*stream_, queue)); !made.ok()) {
      --decode.attempts_left;
      Log(LogLevel::kWarning, "graph_not_recorded",
          {{"rows", std::to_string(step.shape.num_rows)}, {"reason", made.message()}});
    }
  }
  return decode.graph == nullptr ? queue() : decode.graph->Launch(*stream_);
}

Status Decoder::RunPass(const StepShape& shape, KvCache& kv, const AttentionTiling& tiling,
                        int first_logit) {
  const ModelConfig& config = options_.config;
  const DeviceStep step(shape, step_memory_.as<std::byte>());
  if (step.generated.num_rows > 0) {
    DS_RETURN_IF_ERROR(
        PlanDiffAttention(tiling, step.generated, work_.generated_plan.Plan(), *stream_));
  }
  if (step.prompts.num_rows > 0) {
    const AttentionTiling prefill = DiffPrefillTiling(config.attention);
    DS_RETURN_IF_ERROR(
        PlanDiffAttention(prefill, step.prompts, work_.prompt_plan.Plan(), *stream_));
  }
  EmbeddingLookupArgs embedding;
  embedding.table = weights_.embedding.data();
  embedding.tokens = step.tokens;
  embedding.out = work_.residual.as<float>();
  embedding.rows = shape.num_rows;
  embedding.width = config.hidden_size;
  embedding.drawn = &work_.sampled.as<SampledRow>()->token;
  embedding.drawn_stride = sizeof(SampledRow) / sizeof(int32_t);
  DS_RETURN_IF_ERROR(EmbeddingLookup(embedding, *stream_));
  for (size_t l = 0; l < weights_.layers.size(); ++l) {
    DS_RETURN_IF_ERROR(RunLayer(weights_.layers[l], step, kv.Layer(static_cast<int>(l)), tiling));
  }
  RmsNormArgs norm;
  norm.residual = work_.residual.as<float>();
  norm.source_rows = step.logit_rows;
  norm.weight = weights_.final_norm.as<float>();
  norm.out = work_.final_state.as<uint16_t>() +
             static_cast<int64_t>(first_logit) * config.hidden_size;
  norm.rows = shape.num_logit_rows;
  norm.width = config.hidden_size;
  norm.eps = config.rms_norm_eps;
  return RmsNorm(norm, *stream_);
}

// residual += W_o attention(norm(residual)), then += mlp(norm(residual)); K and V of the rows are
// appended to their pages.
Status Decoder::RunLayer(const DeviceLayer& layer, const DeviceStep& step, const PagedKv& kv,
                         const AttentionTiling& tiling) {
  const DiffSpec& spec = options_.config.attention;
  const int rows = step.all.num_rows;
  DS_RETURN_IF_ERROR(Norm(layer.input_norm, rows));
  DS_RETURN_IF_ERROR(Linear(layer.qkv, work_.normed, rows, work_.qkv, DType::kBFloat16, false));
  RopeAppendArgs<BFloat16> append;
  append.spec = spec;
  append.batch = step.all;
  append.kv = kv;
  append.rope = rope_;
  append.style = options_.config.rope.style;
  append.qkv = work_.qkv.as<uint16_t>();
  append.q = work_.q.as<uint16_t>();
  DS_RETURN_IF_ERROR(RopeAppend(append, *stream_));
  if (spec.lambda_kind == LambdaKind::kPerTokenHead) {
    DS_RETURN_IF_ERROR(
        Linear(layer.lambda_proj, work_.normed, rows, work_.lambda, DType::kFloat32, false));
    DS_RETURN_IF_ERROR(Sigmoid(
        {work_.lambda.as<float>(), static_cast<int64_t>(rows) * spec.num_q1_heads}, *stream_));
  }
  DS_RETURN_IF_ERROR(Attend(layer, step, kv, tiling));
  DS_RETURN_IF_ERROR(
      Linear(layer.attention_out, work_.attention, rows, work_.residual, DType::kFloat32, true));
  return RunMlp(layer, rows);
}

Status Decoder::Attend(const DeviceLayer& layer, const DeviceStep& step, const PagedKv& kv,
                       const AttentionTiling& tiling) {
  DiffAttentionArgs<BFloat16> args;
  args.spec = options_.config.attention;
  args.kv = kv;
  args.q = work_.q.as<uint16_t>();
  args.out = work_.attention.as<uint16_t>();
  args.scale = 1.0f / std::sqrt(static_cast<float>(args.spec.head_dim));
  args.lambda = layer.lambda;
  args.lambda_rows = work_.lambda.as<float>();
  args.sub_norm_weight = layer.sub_norm.as<float>();
  args.out_scale = layer.out_scale;
  args.batch = step.generated;
  AttentionSchedule schedule;
  schedule.tiling = tiling;
  schedule.plan = work_.generated_plan.Plan();
  schedule.partials = work_.partials.as<float>();
  DS_RETURN_IF_ERROR(DiffAttention(args, schedule, *stream_));
  args.batch = step.prompts;
  schedule.tiling = DiffPrefillTiling(args.spec);
  schedule.plan = work_.prompt_plan.Plan();
  return DiffAttention(args, schedule, *stream_);
}

Status Decoder::RunMlp(const DeviceLayer& layer, int rows) {
  DS_RETURN_IF_ERROR(Norm(layer.post_attention_norm, rows));
  DS_RETURN_IF_ERROR(
      Linear(layer.gate_up, work_.normed, rows, work_.gate_up, DType::kBFloat16, false));
  const int width = options_.config.intermediate_size;
  const auto* gate_up = work_.gate_up.as<uint16_t>();
  auto* out = work_.mlp.as<uint16_t>();
  switch (options_.config.mlp) {
    case MlpKind::kSwiGlu:
      DS_RETURN_IF_ERROR(SiluMul({gate_up, out, rows, width}, *stream_));
      break;
    case MlpKind::kPolyNorm: {
      const auto& [w, bias] = layer.poly_norm;
      DS_RETURN_IF_ERROR(
          PolyNormMul({gate_up, out, rows, width, {w[0], w[1], w[2]}, bias}, *stream_));
      break;
    }
  }
  return Linear(layer.down, work_.mlp, rows, work_.residual, DType::kFloat32, true);
}

Status Decoder::Norm(const DeviceBuffer& weight, int rows) {
  RmsNormArgs norm;
  norm.residual = work_.residual.as<float>();
  norm.weight = weight.as<float>();
  norm.out = work_.normed.as<uint16_t>();
  norm.rows = rows;
  norm.width = options_.config.hidden_size;
  norm.eps = options_.config.rms_norm_eps;
  return RmsNorm(norm, *stream_);
}

Status Decoder::Linear(const DeviceLinear& layer, const DeviceBuffer& x, int rows,
                       const DeviceBuffer& y, DType y_dtype, bool accumulate) {
  LinearArgs args;
  args.weight = layer.weight.as<uint16_t>();
  args.in_features = layer.in_features;
  args.out_features = layer.out_features;
  args.x = x.as<uint16_t>();
  args.rows = rows;
  args.y = y.data();
  args.y_dtype = y_dtype;
  args.bias = layer.bias.data();
  args.accumulate = accumulate;
  return matrices_->Linear(args, *stream_);
}

// logits = W_head of the final states [first, first + count).
Status Decoder::HeadLogits(int first, int count) {
  LinearArgs args;
  args.weight = weights_.lm_head_rows();
  args.in_features = options_.config.hidden_size;
  args.out_features = options_.config.vocab_size;
  args.x = work_.final_state.as<uint16_t>() +
           static_cast<int64_t>(first) * options_.config.hidden_size;
  args.rows = count;
  args.y = work_.logits.data();
  args.y_dtype = DType::kFloat32;
  return matrices_->Linear(args, *stream_);
}

// `shape` is that of the pass that brought the sample rows.
Status Decoder::SampleAll(const StepShape& shape, int count) {
  const DeviceStep step(shape, step_memory_.as<std::byte>());
  for (int first = 0; first < count; first += work_.logits_rows) {
    const int rows = std::min(work_.logits_rows, count - first);
    DS_RETURN_IF_ERROR(HeadLogits(first, rows));
    SampleRowsArgs args;
    args.logits = work_.logits.as<float>();
    args.vocab_size = options_.config.vocab_size;
    args.num_rows = rows;
    args.rows = step.sample_rows + first;
    args.adjustments = step.adjustments;
    args.sampled = work_.sampled.as<SampledRow>() + first;
    DS_RETURN_IF_ERROR(StatusOfCudaError(SampleRows(args, stream_->handle()), "sampling"));
  }
  return Status();
}

Status Decoder::QueueResults(size_t count) {
  const size_t slot = next_result_++ % results_.size();
  const Pinned& result = results_[slot];
  DS_RETURN_IF_ERROR(CopyToHost(work_.sampled, 0,
                                result.buffer.bytes().first(count * sizeof(SampledRow)), *stream_));
  DS_RETURN_IF_ERROR(stream_->Record(*result.done));
  launched_.push_back({slot, count});
  return Status();
}

Result<std::vector<SampledRow>> Decoder::Collect() {
  DS_CHECK(!launched_.empty(), "a step with sample rows is launched before it is collected");
  const Launched launched = launched_.front();
  launched_.pop_front();
  const Pinned& result = results_[launched.slot];
  DS_RETURN_IF_ERROR(result.done->Wait());
  const auto* rows = result.buffer.as<SampledRow>();
  return std::vector<SampledRow>(rows, rows + launched.count);
}

Result<std::span<const float>> Decoder::Logits(int first, int count) {
  DS_CHECK(first >= 0 && count >= 0 && count <= num_logit_rows_ - first,
           "logits of rows that the last Forward did not keep");
  const size_t vocab = static_cast<size_t>(options_.config.vocab_size);
  host_logits_.resize(std::max(host_logits_.size(), static_cast<size_t>(count) * vocab));
  for (int done = 0; done < count; done += work_.logits_rows) {
    const int rows = std::min(work_.logits_rows, count - done);
    DS_RETURN_IF_ERROR(HeadLogits(first + done, rows));
    const auto to = std::span(host_logits_)
                        .subspan(static_cast<size_t>(done) * vocab,
                                 static_cast<size_t>(rows) * vocab);
    DS_RETURN_IF_ERROR(CopyToHost(work_.logits, 0, std::as_writable_bytes(to), *stream_));
  }
  DS_RETURN_IF_ERROR(stream_->Synchronize());
  return std::span<const float>(host_logits_.data(), static_cast<size_t>(count) * vocab);
}

std::vector<float> Decoder::Lambdas() const {
  std::vector<float> lambdas;
  if (options_.config.attention.lambda_kind != LambdaKind::kPerLayer) return lambdas;
  for (const DeviceLayer& layer : weights_.layers) lambdas.push_back(layer.lambda);
  return lambdas;
}

}  // namespace

Status CheckModel(const std::string& model_dir, const ModelConfig& config, DType dtype) {
  if (dtype != DType::kBFloat16) {
    return InvalidArgument(
        "--dtype is " + std::string(NameOf(dtype)) + ", allowed with --device cuda: auto, bfloat16",
        "--dtype");
  }
  constexpr int kUnit = 8;  // elements in 16 bytes, to which rows of activations must be aligned
  const std::pair<const char*, int> widths[] = {{"hidden_size", config.hidden_size},
                                                {"intermediate_size", config.intermediate_size}};
  for (const auto& [key, width] : widths) {
    if (width % kUnit == 0) continue;
    return InvalidArgument(model_dir + "/config.json: --device cuda: " + key + " is " +
                           std::to_string(width) + ", allowed: a multiple of " +
                           std::to_string(kUnit));
  }
  const char* reason = DiffAttentionUnsupported(config.attention, ImageFormat(config.attention));
  if (reason == nullptr) return Status();
  const DiffSpec& spec = config.attention;
  return InvalidArgument(model_dir + "/config.json: --device cuda: " + reason + ": head_dim " +
                         std::to_string(spec.head_dim) + ", v_dim " + std::to_string(spec.v_dim) +
                         ", K maps " + std::to_string(spec.k_maps) +
                         "; allowed head_dim: 16, 48, 64, 96, 128");
}

size_t StepBytes(const ModelConfig& config, StepLimits limits) {
  Complete(config, &limits);
  return Workspace::Bytes(config, limits) + MatrixLibraryOptions().workspace_bytes + kStepBytes;
}

Result<std::unique_ptr<Model>> LoadDecoder(DecoderOptions options, Checkpoint& checkpoint) {
  Complete(options.config, &options.limits);
  auto decoder = std::make_unique<Decoder>(std::move(options));
  DS_RETURN_IF_ERROR(decoder->Load(checkpoint));
  return std::unique_ptr<Model>(std::move(decoder));
}

}  // namespace diffserve::cuda
