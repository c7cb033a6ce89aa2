// SPDX-License-Identifier: Apache-2.0
// weight_packer.h for a device: WeightFormat::kBFloat16, matrices as checkpoints store them, rows
// in the requested order. Values are converted in pinned memory, one piece while the previous is
// copied. The results own their device memory; a tied output projection shares the embedding
// table's.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "kernels/base/cuda/memory.h"
#include "kernels/ops/linear.h"

namespace diffserve::cuda {

class EmbeddingTable {
 public:
  int vocab() const { return vocab_; }
  int width() const { return width_; }
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
  // The output projection of a model with tied weights: float32 logits from the table itself.
  explicit PackedLinear(const EmbeddingTable& table);

  int out_features() const { return out_features_; }
  int in_features() const { return in_features_; }
  LinearOutput output() const { return output_; }
  const void* weight() const { return weight_ == nullptr ? nullptr : weight_->data(); }
  const void* bias() const { return bias_.data(); }  // [out_features] of y's type, or nullptr

 private:
  friend class WeightPacker;
  int out_features_ = 0;
  int in_features_ = 0;
  LinearOutput output_ = LinearOutput::kFloat32;
  std::shared_ptr<DeviceBuffer> weight_;  // [out_features, in_features]
  DeviceBuffer bias_;
};

// Keeps the first error; nothing is copied after it. Work queued on the same stream may use the
// results.
class WeightPacker {
 public:
  explicit WeightPacker(const Stream& stream);

  // As cpu::WeightPacker's.
  PackedLinear Linear(std::span<const LinearPart> parts,
                      LinearOutput output = LinearOutput::kFloat32, bool may_quantize = true);
  EmbeddingTable Table(const TensorView& table);
  DeviceBuffer Floats(const std::vector<float>& values);

  const Status& status() const { return status_; }

 private:
  struct Staging {
    PinnedBuffer buffer;
    std::unique_ptr<Event> copied;
  };

  void Open(Staging* staging);
  DeviceBuffer Allocate(size_t size_bytes);
  // fill(bytes) writes the pinned side.
  template <typename Fill>
  void CopyPiece(const DeviceBuffer& to, size_t offset, size_t size_bytes, const Fill& fill);
  // Copies the rows of the part, in its order.
  void CopyRows(const DeviceBuffer& to, size_t offset, const LinearPart& part);
  DeviceBuffer BFloat16s(const std::vector<float>& values);

  const Stream& stream_;
  std::array<Staging, 2> staging_;
  size_t next_ = 0;
  Status status_;
};

}  // namespace diffserve::cuda
