// SPDX-License-Identifier: Apache-2.0
// weight_packer.h for a device. Matrices of WeightFormat::kBFloat16 are as checkpoints store them,
// rows in the requested order. int8 and int4 ones are made by the CPU's packer, and put in the
// order of weight_tiles.h; fp8 ones are made here. Values are converted in pinned memory, one piece
// while the previous is copied. The results own their device memory; a tied output projection
// shares the embedding table's, unless it is quantised.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/cuda/memory.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/linear_quantized_cuda.h"
#include "kernels/ops/weight_packer.h"

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

  int out_features() const { return out_features_; }
  int in_features() const { return in_features_; }
  LinearOutput output() const { return output_; }
  WeightFormat format() const { return format_; }
  // [out_features, in_features] of kBFloat16, or codes
  const void* weight() const { return weight_ == nullptr ? nullptr : weight_->data(); }
  QuantizedMatrix matrix() const {
    return {format_, weight(), static_cast<const float*>(scale_.data()), in_features_,
            out_features_};
  }
  const void* bias() const { return bias_.data(); }  // [out_features] of y's type, or nullptr

 private:
  friend class WeightPacker;
  int out_features_ = 0;
  int in_features_ = 0;
  LinearOutput output_ = LinearOutput::kFloat32;
  WeightFormat format_ = WeightFormat::kBFloat16;
  std::shared_ptr<DeviceBuffer> weight_;
  DeviceBuffer scale_;  // kInt8, kFp8E4M3: [out_features]
  DeviceBuffer bias_;
};

// Keeps the first error; nothing is copied after it. Work queued on the same stream may use the
// results.
class WeightPacker {
 public:
  // Matrices that may be quantised have `linear_format`: kBFloat16 or a quantised one.
  WeightPacker(const Stream& stream, WeightFormat linear_format, CpuIsa isa, ThreadPool& pool);

  // With the format kFp8E4M3: matrices that the checkpoint does not store in it stay bfloat16.
  void KeepOthersThanFp8() { keeps_others_ = true; }

  // As cpu::WeightPacker's. Matrices stored in fp8 keep their codes in that format.
  PackedLinear Linear(std::span<const LinearPart> parts,
                      LinearOutput output = LinearOutput::kFloat32, bool may_quantize = true);
  // An int8 or int4 matrix that the CPU's packer made.
  PackedLinear Quantized(const cpu::PackedLinear& matrix, LinearOutput output);
  EmbeddingTable Table(const TensorView& table);
  EmbeddingTable Table(const Buffer& memory, DType dtype, std::pair<int, int> shape);
  // The output projection of a model with tied weights: the table itself, or a quantised copy.
  PackedLinear TiedLinear(const EmbeddingTable& embedding, const LinearPart& table);
  DeviceBuffer Floats(const std::vector<float>& values);

  const Status& status() const { return status_; }

 private:
  struct Staging {
    PinnedBuffer buffer;
    std::unique_ptr<Event> copied;
  };

  void Open(Staging* staging);
  DeviceBuffer Allocate(size_t size_bytes);
  PackedLinear Fp8(std::span<const LinearPart> parts, LinearOutput output);
  // In y's type.
  DeviceBuffer Bias(const std::vector<float>& bias, LinearOutput output);
  // fill(bytes) writes the pinned side.
  template <typename Fill>
  void CopyPiece(const DeviceBuffer& to, size_t offset, size_t size_bytes, const Fill& fill);
  // Copies the rows of the part, in its order.
  void CopyRows(const DeviceBuffer& to, size_t offset, const LinearPart& part);
  DeviceBuffer BFloat16s(const std::vector<float>& values);

  const Stream& stream_;
  const WeightFormat linear_format_;
  bool keeps_others_ = false;
  ThreadPool& pool_;
  cpu::WeightPacker quantizer_;
  std::array<Staging, 2> staging_;
  size_t next_ = 0;
  Status status_;
};

}  // namespace diffserve::cuda
