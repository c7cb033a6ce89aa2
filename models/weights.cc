#include "models/weights.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "kernels/ops/weight_codec.h"

namespace diffserve {
namespace {

constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr char kLmHead[] = "lm_head.weight";
constexpr char kFinalNorm[] = "model.norm.weight";

struct TensorNeed {
  std::string name;
  std::vector<int64_t> shape;
};

std::string LayerPrefix(int layer) { return "model.layers." + std::to_string(layer) + "."; }

// A linear layer of the checkpoint: NAME.weight [out, in] and, with `bias`, NAME.bias [out].
struct LinearNeed {
  std::string name;
  int64_t out_features = 0;
  int64_t in_features = 0;
  bool bias = false;
};

LinearNeed Query(const ModelConfig& c, int layer) {
  return {LayerPrefix(layer) + "self_attn.q_proj", c.attention.q_width(), c.hidden_size,
          c.qkv_bias};
}
LinearNeed Key(const ModelConfig& c, int layer) {
  return {LayerPrefix(layer) + "self_attn.k_proj", c.attention.k_width(), c.hidden_size,
          c.qkv_bias};
}
LinearNeed Value(const ModelConfig& c, int layer) {
  return {LayerPrefix(layer) + "self_attn.v_proj", c.attention.v_width(), c.hidden_size,
          c.qkv_bias};
}
LinearNeed AttentionOut(const ModelConfig& c, int layer) {
  return {LayerPrefix(layer) + "self_attn." + c.attention_out_name, c.hidden_size,
          c.attention.out_width(), c.attention_out_bias};
}
LinearNeed Gate(const ModelConfig& c, int layer) {
  return {LayerPrefix(layer) + "mlp.gate_proj", c.intermediate_size, c.hidden_size, c.mlp_bias};
}
LinearNeed Up(const ModelConfig& c, int layer) {
  return {LayerPrefix(layer) + "mlp.up_proj", c.intermediate_size, c.hidden_size, c.mlp_bias};
}
LinearNeed Down(const ModelConfig& c, int layer) {
  return {LayerPrefix(layer) + "mlp.down_proj", c.hidden_size, c.intermediate_size, c.mlp_bias};
}
std::string InputNorm(int layer) { return LayerPrefix(layer) + "input_layernorm.weight"; }
std::string PostAttentionNorm(int layer) {
  return LayerPrefix(layer) + "post_attention_layernorm.weight";
}
std::string LambdaVector(int layer, const char* which) {
  return LayerPrefix(layer) + "self_attn.lambda_" + which;
}
LinearNeed LambdaProjection(const ModelConfig& c, int layer) {
  return {LayerPrefix(layer) + "self_attn.lambda_proj", c.attention.num_q1_heads, c.hidden_size,
          false};
}
std::string SubNormWeight(int layer) { return LayerPrefix(layer) + "self_attn.subln.weight"; }
std::string PolyNorm(int layer, const char* which) {
  return LayerPrefix(layer) + "mlp.act_fn." + which;
}

// Which tensors the embedding and the output projection come from. Tied weights as transformers
// resolves them: one of the two may be absent, and where a checkpoint has both, both are used.
std::pair<std::string, std::string> EmbeddingAndHead(const ModelConfig& config,
                                                     const Checkpoint& checkpoint) {
  if (!config.tie_word_embeddings) return {kEmbedding, kLmHead};
  if (!checkpoint.Has(kLmHead)) return {kEmbedding, kEmbedding};
  return {checkpoint.Has(kEmbedding) ? kEmbedding : kLmHead, kLmHead};
}

// Calls need(NAME, SHAPE) for each tensor of a layer.
void ForEachLayerTensor(const ModelConfig& config, int layer,
                        const std::function<void(TensorNeed)>& need) {
  const auto need_linear = [&](const LinearNeed& linear) {
    need({linear.name + ".weight", {linear.out_features, linear.in_features}});
    if (linear.bias) need({linear.name + ".bias", {linear.out_features}});
  };
  for (const auto linear : {Query, Key, Value, AttentionOut, Gate, Up, Down})
    need_linear(linear(config, layer));
  need({InputNorm(layer), {config.hidden_size}});
  need({PostAttentionNorm(layer), {config.hidden_size}});
  if (config.attention.lambda_kind == LambdaKind::kPerLayer) {
    for (const char* which : {"q1", "k1", "q2", "k2"})
      need({LambdaVector(layer, which), {config.attention.head_dim}});
  }
  if (config.attention.lambda_kind == LambdaKind::kPerTokenHead)
    need_linear(LambdaProjection(config, layer));
  if (config.attention.sub_norm == SubNorm::kAffine)
    need({SubNormWeight(layer), {config.attention.v_dim}});
  if (config.mlp == MlpKind::kPolyNorm) {
    need({PolyNorm(layer, "weight"), {3}});
    need({PolyNorm(layer, "bias"), {1}});
  }
}

// Reads tensors in straight lines: the first error is kept, and views after it are empty.
class TensorSource {
 public:
  explicit TensorSource(Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  TensorView View(const std::string& name, const std::vector<int64_t>& shape) {
    if (!status_.ok()) return {};
    Result<TensorView> view = checkpoint_.Get(name, shape);
    if (!view.ok()) status_ = view.status();
    return view.ok() ? *view : TensorView{};
  }

  std::vector<float> Vector(const std::string& name, int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    const TensorView view = View(name, {count});
    if (view.data != nullptr) CopyToFloat(view, 0, count, values.data());
    return values;
  }

  // `head_order`, if given, brings the rows, in runs of head_dim, into canonical order.
  LinearPart Part(const LinearNeed& need, const std::vector<int32_t>& head_order = {},
                  int head_dim = 0) {
    LinearPart part;
    part.weight = View(need.name + ".weight", {need.out_features, need.in_features});
    if (need.bias) part.bias = View(need.name + ".bias", {need.out_features});
    for (int32_t head : head_order) {
      for (int row = 0; row < head_dim; ++row) part.row_order.push_back(head * head_dim + row);
    }
    return part;
  }

  const Status& status() const { return status_; }

 private:
  Checkpoint& checkpoint_;
  Status status_;
};

// lambda = exp(lq1 . lk1) - exp(lq2 . lk2) + lambda_init (arXiv 2410.05258, eq. 2), in float32.
float ReadLambda(const ModelConfig& config, int layer, TensorSource& source) {
  const int head_dim = config.attention.head_dim;
  const auto exp_dot = [&](const char* q, const char* k) {
    const std::vector<float> a = source.Vector(LambdaVector(layer, q), head_dim);
    const std::vector<float> b = source.Vector(LambdaVector(layer, k), head_dim);
    float sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return std::exp(sum);
  };
  const float signal = exp_dot("q1", "k1");
  return signal - exp_dot("q2", "k2") + config.lambda_init[static_cast<size_t>(layer)];
}

}  // namespace

Result<OuterTensors> ReadOuterTensors(const ModelConfig& config, Checkpoint& checkpoint) {
  const auto [embedding_name, lm_head_name] = EmbeddingAndHead(config, checkpoint);
  TensorSource source(checkpoint);
  OuterTensors outer;
  outer.embedding = source.View(embedding_name, {config.vocab_size, config.hidden_size});
  outer.lm_head = lm_head_name == embedding_name
                      ? outer.embedding
                      : source.View(lm_head_name, {config.vocab_size, config.hidden_size});
  outer.final_norm = source.Vector(kFinalNorm, config.hidden_size);
  if (!source.status().ok()) return source.status();
  return outer;
}

Result<LayerTensors> ReadLayerTensors(const ModelConfig& config, int layer,
                                      Checkpoint& checkpoint) {
  TensorSource source(checkpoint);
  const HeadOrder& order = config.head_order;
  const int head_dim = config.attention.head_dim;
  LayerTensors tensors;
  tensors.input_norm = source.Vector(InputNorm(layer), config.hidden_size);
  tensors.qkv = {source.Part(Query(config, layer), order.q, head_dim),
                 source.Part(Key(config, layer), order.k, head_dim),
                 source.Part(Value(config, layer), order.v, head_dim)};
  tensors.attention_out = {source.Part(AttentionOut(config, layer))};
  tensors.post_attention_norm = source.Vector(PostAttentionNorm(layer), config.hidden_size);
  tensors.gate_up = {source.Part(Gate(config, layer)), source.Part(Up(config, layer))};
  tensors.down = {source.Part(Down(config, layer))};
  if (config.attention.lambda_kind == LambdaKind::kPerLayer) {
    tensors.lambda = ReadLambda(config, layer, source);
    tensors.out_scale = 1.0f - config.lambda_init[static_cast<size_t>(layer)];
  }
  if (config.attention.lambda_kind == LambdaKind::kPerTokenHead) {
    tensors.lambda_proj = {source.Part(LambdaProjection(config, layer))};
  }
  if (config.attention.sub_norm == SubNorm::kAffine) {
    tensors.sub_norm = source.Vector(SubNormWeight(layer), config.attention.v_dim);
  }
  if (config.mlp == MlpKind::kPolyNorm) {
    std::ranges::copy(source.Vector(PolyNorm(layer, "weight"), 3), tensors.poly_norm.weight);
    tensors.poly_norm.bias = source.Vector(PolyNorm(layer, "bias"), 1)[0];
  }
  if (!source.status().ok()) return source.status();
  return tensors;
}

Result<WeightSizes> CheckWeights(const ModelConfig& config, const Checkpoint& checkpoint,
                                 WeightFormat format, bool packs_tied_head) {
  WeightSizes sizes;
  Status status;
  // Matrices are kept in `format`, vectors in float32.
  const auto check = [&](const TensorNeed& need) {
    if (status.ok()) status = checkpoint.Check(need.name, need.shape);
    const int64_t count = TensorView{.shape = need.shape}.num_elements();
    sizes.num_parameters += count;
    sizes.memory_bytes += need.shape.size() == 2 ? WeightBytes(format, need.shape[0], need.shape[1])
                                                 : static_cast<size_t>(count) * sizeof(float);
  };
  const auto [embedding, lm_head] = EmbeddingAndHead(config, checkpoint);
  const std::vector<int64_t> table_shape = {config.vocab_size, config.hidden_size};
  const size_t table_bytes = WeightBytes(format, config.vocab_size, config.hidden_size);
  check({embedding, table_shape});
  if (lm_head != embedding) {
    check({lm_head, table_shape});
  } else if (packs_tied_head) {
    sizes.memory_bytes += table_bytes;
  }
  for (int layer = 0; layer < config.num_layers; ++layer) ForEachLayerTensor(config, layer, check);
  check({kFinalNorm, {config.hidden_size}});
  if (!status.ok()) return status;

  for (const auto linear : {Query, AttentionOut, Down}) {
    const LinearNeed need = linear(config, 0);
    if (!need.bias && checkpoint.Has(need.name + ".bias")) {
      return InvalidArgument(
          checkpoint.PathOf(need.name + ".bias") + ": tensor " + need.name +
          ".bias is there, but config.json " +
          "says that there is none (attention_bias, qkv_bias, use_bias, mlp_bias)");
    }
  }
  const bool reads_table = lm_head == embedding && !packs_tied_head;
  sizes.step_bytes = sizes.memory_bytes - (reads_table ? 0 : table_bytes);
  return sizes;
}

Result<DecoderWeights> LoadWeights(const ModelConfig& config, Checkpoint& checkpoint,
                                   cpu::WeightPacker packer) {
  Result<OuterTensors> outer = ReadOuterTensors(config, checkpoint);
  if (!outer.ok()) return outer.status();
  DecoderWeights weights;
  weights.embedding = packer.Table(outer->embedding);
  const LinearPart head = {.weight = outer->lm_head, .row_order = {}, .bias = {}};
  weights.lm_head = packer.Linear(std::span(&head, 1));
  weights.final_norm = std::move(outer->final_norm);
  checkpoint.ReleaseMemory();
  if (!packer.status().ok()) return packer.status();
  for (int layer = 0; layer < config.num_layers; ++layer) {
    Result<LayerTensors> tensors = ReadLayerTensors(config, layer, checkpoint);
    if (!tensors.ok()) return tensors.status();
    weights.layers.push_back({.input_norm = std::move(tensors->input_norm),
                              .qkv = packer.Linear(tensors->qkv),
                              .attention_out = packer.Linear(tensors->attention_out),
                              .lambda = tensors->lambda,
                              .out_scale = tensors->out_scale,
                              .lambda_proj = packer.Linear(tensors->lambda_proj),
                              .sub_norm = std::move(tensors->sub_norm),
                              .post_attention_norm = std::move(tensors->post_attention_norm),
                              .gate_up = packer.Linear(tensors->gate_up),
                              .poly_norm = tensors->poly_norm,
                              .down = packer.Linear(tensors->down)});
    checkpoint.ReleaseMemory();
    if (!packer.status().ok()) return packer.status();
  }
  return weights;
}

}  // namespace diffserve
