// SPDX-License-Identifier: Apache-2.0
// WeightPacker: turns a checkpoint's tensors into what the CPU's kernels read. PackedLinear is
// panels of output features in the order in which the chosen level's micro-kernel reads them
// (weight_format.h); EmbeddingTable is a plain table. weight_packer_cuda.h has the same for a
// device. Used by the thread that loads a model.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/status.h"
#include "kernels/base/thread_pool.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/weight_format.h"

namespace diffserve::cpu {

// A packed matrix that was saved earlier, as it is read back.
struct PackedMatrix {
  int out_features = 0;
  int in_features = 0;
  WeightFormat format = WeightFormat::kInt8;
  CpuIsa isa = kBaseCpuIsa;
  Buffer panels;             // [panels][PanelBytes]
  std::vector<float> scale;  // kInt8: [out_features]
  std::vector<float> bias;   // [out_features], or empty
};

// Output features in a panel of packed weights.
int PanelColumns(CpuIsa isa);

// The first panel of a quantised format that no packer writes and for which no kernel promises
// products: one with an int8 code 0, or an int4 scale that is not finite. -1: all are good.
int64_t FindBadPanel(WeightFormat format, int columns, int64_t in_features,
                     std::span<const std::byte> panels);

class PackedLinear {
 public:
  PackedLinear() = default;
  explicit PackedLinear(PackedMatrix matrix);

  int out_features() const { return out_features_; }
  int in_features() const { return in_features_; }
  WeightFormat format() const { return format_; }
  CpuIsa isa() const { return isa_; }
  size_t weight_bytes() const { return panels_.size_bytes() + scale_.size() * sizeof(float); }
  const void* panels() const { return panels_.data(); }
  int64_t panel_bytes() const { return panel_bytes_; }
  // kInt8: [out_features], else nullptr
  const float* scale() const { return scale_.empty() ? nullptr : scale_.data(); }
  // [out_features], or nullptr
  const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); }

 private:
  friend class WeightPacker;
  int out_features_ = 0;
  int in_features_ = 0;
  WeightFormat format_ = WeightFormat::kFloat32;
  CpuIsa isa_ = kBaseCpuIsa;
  int64_t panel_bytes_ = 0;
  Buffer panels_;
  std::vector<float> scale_;
  std::vector<float> bias_;
};

class EmbeddingTable {
 public:
  EmbeddingTable() = default;
  // `memory`: [vocab, width] of the format.
  EmbeddingTable(int vocab, int width, WeightFormat format, Buffer memory)
      : vocab_(vocab), width_(width), format_(format), memory_(std::move(memory)) {}

  int vocab() const { return vocab_; }
  int width() const { return width_; }
  WeightFormat format() const { return format_; }
  const void* data() const { return memory_.data(); }  // [vocab, width]

 private:
  friend class WeightPacker;
  int vocab_ = 0;
  int width_ = 0;
  WeightFormat format_ = WeightFormat::kFloat32;
  Buffer memory_;
};

// Keeps the first error; what is packed after it is empty.
class WeightPacker {
 public:
  // Linear layers have `linear_format`, everything else `format`, which is not quantised.
  WeightPacker(WeightFormat format, WeightFormat linear_format, CpuIsa isa, ThreadPool& pool)
      : format_(format), linear_format_(linear_format), isa_(isa), pool_(pool) {}

  // The parts stacked; without parts an empty matrix. A wider checkpoint is rounded to nearest
  // even. Error: a weight that the format cannot hold, with the tensor's name. REQUIRES: all parts
  // share in_features.
  PackedLinear Linear(std::span<const LinearPart> parts,
                      LinearOutput output = LinearOutput::kFloat32, bool may_quantize = true);
  // A matrix that was packed before, for this level.
  PackedLinear Quantized(PackedLinear matrix, LinearOutput) { return matrix; }
  // A table [vocab, width]; the same error.
  EmbeddingTable Table(const TensorView& table);
  // Takes `memory`, which has the packer's format.
  EmbeddingTable Table(Buffer memory, DType, std::pair<int, int> shape) {
    return EmbeddingTable(shape.first, shape.second, format_, std::move(memory));
  }
  // The output projection of a model with tied weights: a second copy.
  PackedLinear TiedLinear(const EmbeddingTable&, const LinearPart& table) {
    return Linear({&table, 1});
  }
  std::vector<float> Floats(std::vector<float> values) { return values; }

  const Status& status() const { return status_; }

 private:
  // Keeps an error if a value of the tensor is outside the format's range.
  void CheckRange(const TensorView& tensor, WeightFormat format);

  const WeightFormat format_;
  const WeightFormat linear_format_;
  const CpuIsa isa_;
  ThreadPool& pool_;
  Status status_;
};

}  // namespace diffserve::cpu
