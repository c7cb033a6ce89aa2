// SPDX-License-Identifier: Apache-2.0
// Checks a checkpoint by the table of weights (weight_table.h) and fills a backend's weights from
// it. Everything is copied: once LoadWeights has returned, the checkpoint's files are not needed
// any more.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/weight_format.h"
#include "models/checkpoint.h"
#include "models/weight_table.h"

namespace diffserve {

struct WeightSizes {
  int64_t num_parameters = 0;       // tied weights counted once
  size_t step_bytes = 0;            // read by a decode step: everything except the embedding table
  size_t memory_bytes = 0;          // resident, the embedding table included
  size_t stored_bytes = 0;          // read from the checkpoint
  std::vector<std::string> unused;  // checkpoint tensors that no weight is made from
};

// Checks names, shapes and dtypes of all the model's tensors before any of their data is read.
// Formats are as WeightPacker takes them. `packs_tied_head`: a tied output projection is kept as a
// second copy.
Result<WeightSizes> CheckWeights(const ModelConfig& config, const Checkpoint& checkpoint,
                                 WeightFormat format, WeightFormat linear_format,
                                 bool packs_tied_head);

// All tensors of a layer that is not packed.
std::vector<NamedShape> LayerTensors(const ModelConfig& config, int layer);

// All tensors of the model that are not packed, except the embedding and the output projection.
std::vector<NamedShape> ModelTensors(const ModelConfig& config);

// The names of those that are always kept in float32; some have more than one dimension.
std::set<std::string> VectorNames(const ModelConfig& config);

// The tensors of the embedding and the output projection. Tied weights as transformers 5 resolves
// them: one of the two may be absent, and if a checkpoint has both, both are used. A packed
// directory has both.
struct TableNames {
  std::string embedding;
  std::string lm_head;
};
TableNames FindTables(const ModelConfig& config, const TensorSource& source);

// Whether config.json says that the tables are one, but the checkpoint has two with other bytes.
// REQUIRES: CheckWeights has accepted the checkpoint. Error: they cannot be read.
Result<bool> TiedTablesDiffer(const ModelConfig& config, const Checkpoint& checkpoint);

// Reads tensors without branches: the first error is kept, and what is read after it is empty or
// zero. Views are the checkpoint's memory.
class TensorReader {
 public:
  TensorReader(const ModelConfig& config, TensorSource& source)
      : head_dim_(config.attention.head_dim), source_(source) {}

  std::vector<LinearPart> Parts(const std::vector<LinearTensors>& parts);
  using MakeVector = std::function<std::vector<float>(const std::vector<float>&)>;
  // The values after `make`. Error: the tensor has a formula, and its result is not finite.
  std::vector<float> Vector(const VectorTensor& vector, const MakeVector& make = std::identity());
  void ReleaseMemory() { source_.ReleaseMemory(); }
  const Status& status() const { return status_; }

 private:
  TensorView View(const std::string& name, const std::vector<int64_t>& shape);

  const int head_dim_;
  TensorSource& source_;
  Status status_;
};

// Visits the table: passes what is read to the packer, and the packer's results to the weights.
// After an error of either, nothing more is read.
template <typename Packer>
class WeightLoader {
 public:
  WeightLoader(TensorReader& reader, Packer& packer) : reader_(reader), packer_(packer) {}

  Status status() const {
    if (!other_.ok()) return other_;
    return reader_.status().ok() ? packer_.status() : reader_.status();
  }

  template <typename Weight>
  void Linear(Weight& weight, const std::vector<LinearTensors>& parts, LinearOutput output,
              bool may_quantize = true) {
    if (!status().ok()) return;
    weight = packer_.Linear(reader_.Parts(parts), output, may_quantize);
    reader_.ReleaseMemory();
  }
  template <typename Weight, typename Made = std::identity>
  void Vector(Weight& weight, const VectorTensor& vector, const Made& made = {}) {
    if (!status().ok()) return;
    std::vector<float> values = reader_.Vector(vector, made);
    if (status().ok()) weight = packer_.Floats(std::move(values));
    reader_.ReleaseMemory();
  }
  template <typename Use>
  void Numbers(const VectorTensors& vectors, const Use& use) {
    if (!status().ok()) return;
    std::vector<std::vector<float>> values;
    for (const VectorTensor& vector : vectors) values.push_back(reader_.Vector(vector));
    use(values);
    reader_.ReleaseMemory();
  }
  // A tied projection is the table itself if the packer can multiply by it.
  template <typename Table, typename Weight>
  void Tables(Table& embedding, const LinearTensors& table, Weight& lm_head,
              const LinearTensors& head) {
    const std::vector<LinearPart> rows = reader_.Parts({table});
    if (!status().ok()) return;
    embedding = packer_.Table(rows[0].weight);
    if (table.name != head.name) {
      reader_.ReleaseMemory();
      lm_head = packer_.Linear(reader_.Parts({head}), LinearOutput::kFloat32);
    } else {
      lm_head = packer_.TiedLinear(embedding, rows[0]);
    }
    reader_.ReleaseMemory();
  }

 protected:
  // Keeps an error that is neither the reader's nor the packer's.
  void Keep(Status status) {
    if (other_.ok()) other_ = std::move(status);
  }

 private:
  Status other_;
  TensorReader& reader_;
  Packer& packer_;
};

// Error: a layer's vectors are finite, but the lambda computed from them is not.
Status CheckLambdas(const ModelConfig& config, const std::vector<float>& lambdas,
                    const Checkpoint& checkpoint);

// REQUIRES: CheckWeights has accepted the checkpoint. Errors: those of reading, the packer's, and a
// lambda or scan rate that is not finite.
template <typename Weights, typename Packer>
Result<Weights> LoadWeights(const ModelConfig& config, Checkpoint& checkpoint, Packer& packer) {
  Weights weights;
  const TableNames tables = FindTables(config, checkpoint);
  TensorReader reader(config, checkpoint);
  WeightLoader loader(reader, packer);
  VisitWeights(config, tables.embedding, tables.lm_head, weights, loader);
  DS_RETURN_IF_ERROR(loader.status());
  DS_RETURN_IF_ERROR(CheckLambdas(config, weights.Lambdas(config), checkpoint));
  return weights;
}

}  // namespace diffserve
