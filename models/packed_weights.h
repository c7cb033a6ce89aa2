// SPDX-License-Identifier: Apache-2.0
// Reads a packed model directory (packed_format.h): bytes of files go straight into the memory that
// the CPU's kernels read, or that is copied to a device. Each of the pool's workers reads the part
// that it will read first in a step on the CPU. Nothing is converted there, and nothing is in
// memory twice.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/weight_codec.h"
#include "kernels/ops/weight_packer.h"
#include "models/checkpoint.h"
#include "models/weights.h"

namespace diffserve {

// REQUIRES: config.packed is set, `isa` reads its panels; CheckWeights has accepted the checkpoint.
class PackedReader {
 public:
  PackedReader(const ModelConfig& config, Checkpoint& checkpoint, CpuIsa isa, ThreadPool& pool)
      : packed_(*config.packed),
        isa_(isa),
        table_format_(WeightFormatOf(config.checkpoint_dtype)),
        checkpoint_(checkpoint),
        pool_(pool) {}

  Result<cpu::PackedLinear> Linear(const std::vector<LinearTensors>& parts);
  // [out_features, in_features] of the checkpoint's dtype
  Result<Buffer> Table(const LinearTensors& table);

 private:
  // Checks the rows from `row` on, which have just been read. Error: what is wrong with them.
  using CheckRows = std::function<Status(int64_t row, std::span<const std::byte> bytes)>;

  Result<std::vector<float>> ReadFloats(const NamedShape& tensor);
  Result<std::vector<float>> ReadScale(const NamedShape& tensor);
  // Reads a tensor's rows (shape[0] of them); each worker reads its share.
  Status ReadRows(const std::string& name, const std::vector<int64_t>& shape, Buffer& memory,
                  const CheckRows& check);

  const PackedFormat packed_;
  const CpuIsa isa_;
  const WeightFormat table_format_;
  Checkpoint& checkpoint_;
  ThreadPool& pool_;
};

// Visits the table of weights as WeightLoader does, which reads what is never quantised.
template <typename Packer>
class PackedLoader : public WeightLoader<Packer> {
 public:
  PackedLoader(const ModelConfig& config, Checkpoint& checkpoint, TensorReader& reader,
               Packer& packer, CpuIsa isa, ThreadPool& pool)
      : WeightLoader<Packer>(reader, packer),
        table_dtype_(config.checkpoint_dtype),
        packed_(config, checkpoint, isa, pool),
        packer_(packer),
        reader_(reader) {}

  template <typename Weight>
  void Linear(Weight& weight, const std::vector<LinearTensors>& parts, LinearOutput output,
              bool may_quantize = true) {
    if (!this->status().ok()) return;
    if (!may_quantize) return WeightLoader<Packer>::Linear(weight, parts, output, may_quantize);
    Result<cpu::PackedLinear> matrix = packed_.Linear(parts);
    this->Keep(matrix.status());
    if (matrix.ok()) weight = packer_.Quantized(std::move(*matrix), output);
    reader_.ReleaseMemory();
  }
  template <typename Embedding, typename Weight>
  void Tables(Embedding& embedding, const LinearTensors& table, Weight& lm_head,
              const LinearTensors& head) {
    Result<Buffer> rows = packed_.Table(table);
    this->Keep(rows.status());
    if (rows.ok()) {
      embedding = packer_.Table(
          std::move(*rows), table_dtype_,
          {static_cast<int>(table.out_features), static_cast<int>(table.in_features)});
    }
    reader_.ReleaseMemory();
    Linear(lm_head, {head}, LinearOutput::kFloat32);
  }

 private:
  const DType table_dtype_;
  PackedReader packed_;
  Packer& packer_;
  TensorReader& reader_;
};

// As LoadWeights. REQUIRES: as PackedReader's, and the packer has the directory's formats.
template <typename Weights, typename Packer>
Result<Weights> LoadPackedWeights(const ModelConfig& config, Checkpoint& checkpoint, Packer& packer,
                                  CpuIsa isa, ThreadPool& pool) {
  Weights weights;
  const TableNames tables = FindTables(config, checkpoint);
  TensorReader reader(config, checkpoint);
  PackedLoader loader(config, checkpoint, reader, packer, isa, pool);
  VisitWeights(config, tables.embedding, tables.lm_head, weights, loader);
  DS_RETURN_IF_ERROR(loader.status());
  DS_RETURN_IF_ERROR(CheckLambdas(config, weights.Lambdas(config), checkpoint));
  return weights;
}

}  // namespace diffserve
