// SPDX-License-Identifier: Apache-2.0
#include "models/weights.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/refusal.h"
#include "kernels/ops/weight_codec.h"
#include "models/safetensors.h"

namespace diffserve {
namespace {

constexpr char kEmbedding[] = "model.embed_tokens";
constexpr char kLmHead[] = "lm_head";

// Visits the table, and lists the tensors that must exist, the memory they take, and the biases
// that must not exist. Matrices are kept in their format, vectors in float32.
struct TensorList {
  WeightFormat format = WeightFormat::kFloat32;
  WeightFormat linear_format = WeightFormat::kFloat32;
  const Checkpoint* stored_fp8 = nullptr;  // keeps others than fp8 matrices in `format`
  std::vector<NamedShape> tensors = {};
  std::optional<PackedFormat> packed = {};
  DType table_dtype = DType::kFloat32;  // in a packed directory
  std::vector<std::string> absent = {};
  std::set<std::string> vectors = {};
  size_t memory_bytes = 0;
  int64_t num_parameters = 0;

  struct Nothing {};
  using Weights = DecoderWeights<Nothing, Nothing, Nothing>;

  void Linear(Nothing&, const std::vector<LinearTensors>& parts, LinearOutput,
              bool may_quantize = true) {
    if (packed && may_quantize) return Packed(parts);
    for (const LinearTensors& part : parts) {
      Matrix(part, may_quantize ? FormatOf(part) : format);
      if (part.has_bias) Vector(part.name + ".bias", {part.out_features});
      if (!part.has_bias && !part.has_bias_apart) absent.push_back(part.name + ".bias");
    }
  }
  template <typename Made = std::identity>
  void Vector(Nothing&, const VectorTensor& vector, const Made& = {}) {
    Vector(vector.name, vector.shape);
  }
  template <typename Use>
  void Numbers(const VectorTensors& vectors, const Use&) {
    for (const VectorTensor& vector : vectors) Vector(vector.name, vector.shape);
  }
  void Tables(Nothing&, const LinearTensors& table, Nothing&, const LinearTensors& head) {
    Matrix(table, format);
    if (packed) tensors.back().dtype = FileNameOf(table_dtype);
    if (packed) return Packed({head});
    if (head.name != table.name) Matrix(head, FormatOf(head));
  }

 private:
  WeightFormat FormatOf(const LinearTensors& matrix) const {
    const bool keeps = linear_format == WeightFormat::kFp8E4M3 && stored_fp8 != nullptr &&
                       !stored_fp8->IsFp8(matrix.name + ".weight");
    return keeps ? format : linear_format;
  }
  void Matrix(const LinearTensors& matrix, WeightFormat kept_in) {
    tensors.push_back({matrix.name + ".weight", {matrix.out_features, matrix.in_features}});
    memory_bytes += WeightBytes(kept_in, matrix.out_features, matrix.in_features);
    num_parameters += matrix.out_features * matrix.in_features;
  }
  void Packed(const std::vector<LinearTensors>& parts) {
    for (const NamedShape& tensor : PackedLinearTensors::Of(parts, *packed).All())
      tensors.push_back(tensor);
    for (const LinearTensors& part : parts) {
      memory_bytes += WeightBytes(linear_format, part.out_features, part.in_features);
      num_parameters += part.out_features * part.in_features;
      if (!part.has_bias) continue;
      memory_bytes += static_cast<size_t>(part.out_features) * sizeof(float);
      num_parameters += part.out_features;
    }
  }
  void Vector(const std::string& name, const std::vector<int64_t>& shape) {
    tensors.push_back({name, shape});
    vectors.insert(name);
    const int64_t count = VectorTensor{name, shape}.count();
    memory_bytes += static_cast<size_t>(count) * sizeof(float);
    num_parameters += count;
  }
};

// Excludes tables of rope frequencies, which older checkpoints contain and every reader recomputes.
std::vector<std::string> UnusedTensors(const Checkpoint& checkpoint,
                                       const std::vector<NamedShape>& used) {
  std::set<std::string_view> names;
  for (const NamedShape& tensor : used) names.insert(tensor.name);
  std::vector<std::string> unused;
  for (const std::string_view name : checkpoint.Names()) {
    if (!names.contains(name) && name.find("rotary_emb.inv_freq") == std::string_view::npos)
      unused.emplace_back(name);
  }
  return unused;
}

}  // namespace

std::vector<NamedShape> LayerTensors(const ModelConfig& config, int layer) {
  TensorList list;
  TensorList::Weights::Layer nothing;
  VisitLayer(config, layer, nothing, list);
  return std::move(list.tensors);
}

std::vector<NamedShape> ModelTensors(const ModelConfig& config) {
  TensorList list;
  TensorList::Weights nothing;
  VisitWeights(config, kEmbedding, kLmHead, nothing, list);
  list.tensors.erase(list.tensors.begin(), list.tensors.begin() + 2);
  return std::move(list.tensors);
}

std::set<std::string> VectorNames(const ModelConfig& config) {
  TensorList list;
  TensorList::Weights nothing;
  VisitWeights(config, kEmbedding, kLmHead, nothing, list);
  return std::move(list.vectors);
}

TableNames FindTables(const ModelConfig& config, const TensorSource& source) {
  if (!config.tie_word_embeddings || config.packed) return {kEmbedding, kLmHead};
  const auto has = [&](const char* table) { return source.Has(std::string(table) + ".weight"); };
  if (!has(kLmHead)) return {kEmbedding, kEmbedding};
  return {has(kEmbedding) ? kEmbedding : kLmHead, kLmHead};
}

Result<bool> TiedTablesDiffer(const ModelConfig& config, const Checkpoint& checkpoint) {
  constexpr size_t kPieceBytes = size_t{1} << 20;
  const TableNames names = FindTables(config, checkpoint);
  if (!config.tie_word_embeddings || config.packed || names.embedding == names.lm_head)
    return false;
  const std::vector<int64_t> shape = {config.vocab_size, config.hidden_size};
  const std::string tables[] = {names.embedding + ".weight", names.lm_head + ".weight"};
  const size_t size = checkpoint.SizeBytes({tables[0], shape});
  if (checkpoint.SizeBytes({tables[1], shape}) != size) return true;
  std::vector<std::byte> pieces[2];
  for (size_t begin = 0; begin < size; begin += kPieceBytes) {
    for (size_t i = 0; i < 2; ++i) {
      pieces[i].resize(std::min(kPieceBytes, size - begin));
      DS_RETURN_IF_ERROR(checkpoint.ReadBytes(tables[i], begin, pieces[i]));
    }
    if (pieces[0] != pieces[1]) return true;
  }
  return false;
}

Result<WeightSizes> CheckWeights(const ModelConfig& config, const Checkpoint& checkpoint,
                                 WeightFormat format, WeightFormat linear_format,
                                 bool packs_tied_head) {
  const TableNames tables = FindTables(config, checkpoint);
  TensorList list{.format = format,
                  .linear_format = linear_format,
                  .stored_fp8 = config.stores_fp8 ? &checkpoint : nullptr,
                  .packed = config.packed,
                  .table_dtype = config.checkpoint_dtype};
  TensorList::Weights nothing;
  VisitWeights(config, tables.embedding, tables.lm_head, nothing, list);
  WeightSizes sizes;
  sizes.memory_bytes = list.memory_bytes;
  std::vector<NamedShape> scales;
  for (const NamedShape& tensor : list.tensors) {
    DS_RETURN_IF_ERROR(checkpoint.Check(tensor));
    sizes.stored_bytes += checkpoint.SizeBytes(tensor);
    if (checkpoint.IsFp8(tensor.name)) scales.push_back({Checkpoint::ScaleName(tensor.name), {}});
  }
  for (const NamedShape& scale : scales) {
    sizes.stored_bytes += checkpoint.SizeBytes(scale);
    list.tensors.push_back(scale);
  }
  sizes.unused = UnusedTensors(checkpoint, list.tensors);
  sizes.num_parameters = list.num_parameters;
  if (config.tie_word_embeddings && tables.embedding != tables.lm_head)
    sizes.num_parameters -= int64_t{config.vocab_size} * config.hidden_size;
  for (const std::string& name : list.absent) {
    if (!checkpoint.Has(name)) continue;
    return InvalidArgument(
        checkpoint.PathOf(name) + ": tensor " + name + " is there, but config.json " +
        "says that there is none (attention_bias, qkv_bias, use_bias, mlp_bias)");
  }
  const size_t table_bytes = WeightBytes(format, config.vocab_size, config.hidden_size);
  const bool is_tied = tables.embedding == tables.lm_head;
  if (is_tied && packs_tied_head)
    sizes.memory_bytes += WeightBytes(linear_format, config.vocab_size, config.hidden_size);
  const bool reads_table = is_tied && !packs_tied_head;
  sizes.step_bytes = sizes.memory_bytes - (reads_table ? 0 : table_bytes);
  return sizes;
}

Status CheckLambdas(const ModelConfig& config, const std::vector<float>& lambdas,
                    const Checkpoint& checkpoint) {
  const auto bad = std::ranges::find_if(lambdas, [](float value) { return !std::isfinite(value); });
  if (bad == lambdas.end()) return Status();
  const std::string vectors = "model.layers." + std::to_string(bad - lambdas.begin()) + "." +
                              config.names.lambdas + "lambda_";
  return NotAllowed(checkpoint.PathOf(vectors + "q1") + ": tensors " + vectors +
                        "{q1, k1, q2, k2}: exp(q1 . k1) - exp(q2 . k2) + lambda_init is " +
                        std::to_string(*bad),
                    "a finite number");
}

TensorView TensorReader::View(const std::string& name, const std::vector<int64_t>& shape) {
  TensorView view;
  if (status_.ok()) status_ = Assign(&view, source_.Get(name, shape));
  return view;
}

std::vector<LinearPart> TensorReader::Parts(const std::vector<LinearTensors>& parts) {
  std::vector<LinearPart> read;
  for (const LinearTensors& tensors : parts) {
    LinearPart& part = read.emplace_back();
    part.weight = View(tensors.name + ".weight", {tensors.out_features, tensors.in_features});
    if (status_.ok()) {
      status_ = Assign(&part.scale,
                       source_.ScaleOf(tensors.name + ".weight", tensors.out_features));
    }
    if (tensors.has_bias) part.bias = View(tensors.name + ".bias", {tensors.out_features});
    if (tensors.head_order == nullptr) continue;
    for (int32_t head : *tensors.head_order) {
      for (int row = 0; row < head_dim_; ++row) part.row_order.push_back(head * head_dim_ + row);
    }
  }
  return status_.ok() ? read : std::vector<LinearPart>();
}

std::vector<float> TensorReader::Vector(const VectorTensor& vector, const MakeVector& make) {
  std::vector<float> values(static_cast<size_t>(vector.count()));
  const TensorView view = View(vector.name, vector.shape);
  if (!status_.ok()) return values;
  CopyToFloat(view, 0, vector.count(), values.data());
  values = make(values);
  if (vector.formula.empty()) return values;
  const auto bad = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  if (bad != values.end()) {
    status_ = NotAllowed(view.name + ": " + vector.formula + " is " + std::to_string(*bad),
                         "a finite number");
  }
  return values;
}

}  // namespace diffserve
