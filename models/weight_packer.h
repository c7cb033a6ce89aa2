// TEMPORARY
#pragma once
#include "kernels/ops/linear.h"

namespace diffserve::cpu {

struct EmbeddingTable {
  Buffer memory;
  TensorView view;
};

class WeightPacker {
 public:
  WeightPacker(DType dtype, CpuIsa isa, ThreadPool& pool) : dtype_(dtype), isa_(isa), pool_(pool) {}
  PackedLinear Linear(std::span<const LinearPart> parts, LinearOutput) {
    return parts.empty() ? PackedLinear() : PackedLinear(parts, dtype_, isa_, pool_);
  }
  EmbeddingTable Table(const TensorView& table) {
    const int64_t count = table.num_elements();
    EmbeddingTable made;
    made.memory = Buffer(static_cast<size_t>(count) * SizeOf(dtype_));
    for (int64_t i = 0; i < count; ++i) {
      if (dtype_ == DType::kFloat32)
        made.memory.as<float>()[i] = table.At(i);
      else
        made.memory.as<uint16_t>()[i] = FloatToBFloat16(table.At(i));
    }
    made.view = {made.memory.data(), dtype_, table.shape};
    return made;
  }
  std::vector<float> Floats(std::vector<float> values) { return values; }
  Status status() const { return Status(); }

 private:
  const DType dtype_;
  const CpuIsa isa_;
  ThreadPool& pool_;
};

}  // namespace diffserve::cpu
