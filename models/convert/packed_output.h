// SPDX-License-Identifier: Apache-2.0
// The contents of a packed directory (packed_format.h), made from a plan's tensors: linear layers
// are quantised and packed, one at a time in memory, and everything else is copied.
//
// Thread safety: one thread, which runs the packer's pool.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/ops/weight_packer.h"
#include "models/convert/safetensors_writer.h"
#include "models/convert/tensor_names.h"
#include "models/weights.h"

namespace diffserve {

// Tensors of a plan, by their names in the converted checkpoint.
class PlanSource : public TensorSource {
 public:
  // `where` names the source in errors. Both must outlive this.
  PlanSource(const TensorPlan& plan, const std::string& where) : plan_(plan), where_(where) {}

  // nullptr: there is no such tensor.
  const PlannedTensor* Find(const std::string& name) const;
  Status Check(const std::string& name, const std::vector<int64_t>& shape) const;
  bool Has(const std::string& name) const override { return Find(name) != nullptr; }
  Result<TensorView> Get(const std::string& name, const std::vector<int64_t>& shape) override;
  void ReleaseMemory() override { buffers_.clear(); }

 private:
  const TensorPlan& plan_;
  const std::string& where_;
  std::vector<std::unique_ptr<std::byte[]>> buffers_;
};

class PackedOutput {
 public:
  // A tensor to copy, or a linear layer to pack.
  struct Item {
    NamedShape tensor;                   // its name in the result; empty for a packed layer
    const PlannedTensor* copied;         // nullptr: packed
    std::vector<LinearTensors> packed;   // names in the result
    std::vector<LinearTensors> sources;  // sources of `packed`
  };

  // `config` is the source's. Error: the plan lacks a tensor, or has it with another shape. All
  // arguments must outlive this.
  static Result<std::unique_ptr<PackedOutput>> Plan(const ModelConfig& config,
                                                    const PackedFormat& format, PlanSource& source);

  // In writing order.
  const std::vector<Item>& items() const { return items_; }
  // The tensors that Write writes for a packed item.
  std::vector<OutputTensor> TensorsOf(const Item& item) const;
  // Errors: a weight that the format cannot hold, and those of reading or writing.
  Status Write(const Item& item, cpu::WeightPacker& packer, SafetensorsWriter& writer) const;

 private:
  PackedOutput(const ModelConfig& config, const PackedFormat& format, PlanSource& source)
      : config_(config), format_(format), source_(source) {}

  const ModelConfig& config_;
  const PackedFormat format_;
  PlanSource& source_;
  std::vector<Item> items_;
};

}  // namespace diffserve
