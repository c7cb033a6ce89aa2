// The weights of a decoder on a CUDA device, bfloat16 matrices as checkpoints store them, rows in
// canonical head order.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/base/cuda/memory.h"
#include "kernels/ops/linear.h"

namespace diffserve::cuda {

class EmbeddingTable {
 public:
  const void* data() const { return memory_ == nullptr ? nullptr : memory_->data(); }

 private:
  friend class PackedLinear;
  friend class WeightPacker;
  int vocab_ = 0;
  int width_ = 0;
  std::shared_ptr<DeviceBuffer> memory_;  // [vocab, width]
};

class PackedLinear {
 public:
  PackedLinear() = default;
  explicit PackedLinear(const EmbeddingTable& table)
      : out_features_(table.vocab_), in_features_(table.width_), weight_(table.memory_) {}
  int out_features() const { return out_features_; }
  int in_features() const { return in_features_; }
  LinearOutput output() const { return output_; }
  const void* weight() const { return weight_ == nullptr ? nullptr : weight_->data(); }
  const void* bias() const { return bias_.data(); }

 private:
  friend class WeightPacker;
  int out_features_ = 0;
  int in_features_ = 0;
  LinearOutput output_ = LinearOutput::kFloat32;
  std::shared_ptr<DeviceBuffer> weight_;  // [out_features, in_features]
  DeviceBuffer bias_;
};

class Uploader;
class WeightPacker {
 public:
  explicit WeightPacker(const Stream& stream);
  ~WeightPacker();
  PackedLinear Linear(std::span<const LinearPart> parts, LinearOutput output);
  EmbeddingTable Table(const TensorView& table);
  DeviceBuffer Floats(const std::vector<float>& values);
  const Status& status() const;

 private:
  std::unique_ptr<Uploader> uploader_;
};

}  // namespace diffserve::cuda
