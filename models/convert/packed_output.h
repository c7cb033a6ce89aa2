// What stands in a packed directory (packed_format.h), and how it is made of the tensors of a plan:
// linear layers are quantised and packed, one in memory at a time, and all else is copied.
//
// Thread safety: one thread, which runs the packer's pool.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/ops/weight_packer.h"
#include "models/convert/tensor_names.h"
#include "models/safetensors_writer.h"
#include "models/weights.h"

namespace diffserve {

// Tensors of a plan, by the names that they have in the converted checkpoint.
class PlanSource : public TensorSource {
 public:
  // `where` names the source in errors. Both must outlive this.
  PlanSource(const TensorPlan& plan, const std::string& where) : plan_(plan), where_(where) {}

  // nullptr: there is none.
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
  // A tensor that is copied, or a linear layer that is packed.
  struct Item {
    NamedShape tensor;                   // as it will be called; of what is packed: none
    const PlannedTensor* copied;         // nullptr: packed
    std::vector<LinearTensors> packed;   // as they will be called
    std::vector<LinearTensors> sources;  // of `packed`
  };

  // `config`: the source's. Error: the plan lacks a tensor, or has it in another shape. All must
  // outlive this.
  static Result<std::unique_ptr<PackedOutput>> Plan(const ModelConfig& config,
                                                    const PackedFormat& format, PlanSource& source);

  // In the order in which they are written.
  const std::vector<Item>& items() const { return items_; }
  // What Write writes of a packed item.
  std::vector<OutputTensor> TensorsOf(const Item& item) const;
  // Error: a weight that the format cannot hold, or one of reading or writing.
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
