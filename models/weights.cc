#include "models/weights.h"

#include "kernels/ops/weight_codec.h"

namespace diffserve {
namespace {

constexpr char kEmbedding[] = "model.embed_tokens";
constexpr char kLmHead[] = "lm_head";

// Visits the table, and writes down which tensors there must be, and which biases must not.
struct TensorList {
  std::vector<NamedShape> tensors;
  std::vector<std::string> absent;

  struct Nothing {};
  using Weights = DecoderWeights<Nothing, Nothing, Nothing>;

  void Linear(Nothing&, const std::vector<LinearTensors>& parts, LinearOutput) {
    for (const LinearTensors& part : parts) {
      tensors.push_back({part.name + ".weight", {part.out_features, part.in_features}});
      if (part.has_bias) tensors.push_back({part.name + ".bias", {part.out_features}});
      if (!part.has_bias) absent.push_back(part.name + ".bias");
    }
  }
  void Vector(Nothing&, const VectorTensor& vector) {
    tensors.push_back({vector.name, {vector.count}});
  }
  template <typename Use>
  void Numbers(const VectorTensors& vectors, const Use&) {
    for (const VectorTensor& vector : vectors) tensors.push_back({vector.name, {vector.count}});
  }
  void Tables(Nothing&, const LinearTensors& table, Nothing&, const LinearTensors& head) {
    tensors.push_back({table.name + ".weight", {table.out_features, table.in_features}});
    if (head.name != table.name)
      tensors.push_back({head.name + ".weight", {head.out_features, head.in_features}});
  }
};

}  // namespace

std::vector<NamedShape> LayerTensors(const ModelConfig& config, int layer) {
  TensorList list;
  TensorList::Weights::Layer nothing;
  VisitLayer(config, layer, nothing, list);
  return std::move(list.tensors);
}

TableNames FindTables(const ModelConfig& config, const Checkpoint& checkpoint) {
  if (!config.tie_word_embeddings) return {kEmbedding, kLmHead};
  const auto has = [&](const char* table) {
    return checkpoint.Has(std::string(table) + ".weight");
  };
  if (!has(kLmHead)) return {kEmbedding, kEmbedding};
  return {has(kEmbedding) ? kEmbedding : kLmHead, kLmHead};
}

Result<WeightSizes> CheckWeights(const ModelConfig& config, const Checkpoint& checkpoint,
                                 WeightFormat format, bool packs_tied_head) {
  const TableNames tables = FindTables(config, checkpoint);
  TensorList list;
  TensorList::Weights nothing;
  VisitWeights(config, tables.embedding, tables.lm_head, nothing, list);
  WeightSizes sizes;
  // Matrices are kept in `format`, vectors in float32.
  for (const NamedShape& tensor : list.tensors) {
    DS_RETURN_IF_ERROR(checkpoint.Check(tensor.name, tensor.shape));
    const int64_t count = TensorView{.shape = tensor.shape}.num_elements();
    sizes.num_parameters += count;
    sizes.memory_bytes += tensor.shape.size() == 2
                              ? WeightBytes(format, tensor.shape[0], tensor.shape[1])
                              : static_cast<size_t>(count) * sizeof(float);
  }
  for (const std::string& name : list.absent) {
    if (!checkpoint.Has(name)) continue;
    return InvalidArgument(
        checkpoint.PathOf(name) + ": tensor " + name + " is there, but config.json " +
        "says that there is none (attention_bias, qkv_bias, use_bias, mlp_bias)");
  }
  const size_t table_bytes = WeightBytes(format, config.vocab_size, config.hidden_size);
  const bool is_tied = tables.embedding == tables.lm_head;
  if (is_tied && packs_tied_head) sizes.memory_bytes += table_bytes;
  const bool reads_table = is_tied && !packs_tied_head;
  sizes.step_bytes = sizes.memory_bytes - (reads_table ? 0 : table_bytes);
  return sizes;
}

TensorView TensorReader::View(const std::string& name, const std::vector<int64_t>& shape) {
  TensorView view;
  if (status_.ok()) status_ = Assign(&view, checkpoint_.Get(name, shape));
  return view;
}

std::vector<LinearPart> TensorReader::Parts(const std::vector<LinearTensors>& parts) {
  std::vector<LinearPart> read;
  for (const LinearTensors& tensors : parts) {
    LinearPart& part = read.emplace_back();
    part.weight = View(tensors.name + ".weight", {tensors.out_features, tensors.in_features});
    if (tensors.has_bias) part.bias = View(tensors.name + ".bias", {tensors.out_features});
    if (tensors.head_order == nullptr) continue;
    for (int32_t head : *tensors.head_order) {
      for (int row = 0; row < head_dim_; ++row) part.row_order.push_back(head * head_dim_ + row);
    }
  }
  return status_.ok() ? read : std::vector<LinearPart>();
}

std::vector<float> TensorReader::Vector(const VectorTensor& vector) {
  std::vector<float> values(static_cast<size_t>(vector.count));
  const TensorView view = View(vector.name, {vector.count});
  if (status_.ok()) CopyToFloat(view, 0, vector.count, values.data());
  return values;
}

}  // namespace diffserve
