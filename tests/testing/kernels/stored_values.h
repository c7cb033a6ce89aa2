// SPDX-License-Identifier: Apache-2.0
// Tensors and activations as a checkpoint or a device stores them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kernels/base/tensor.h"
#include "tests/testing/kernels/kernel_levels.h"

namespace diffserve::testing {

// A checkpoint tensor that owns its memory.
class StoredTensor {
 public:
  StoredTensor(const std::vector<float>& values, std::vector<int64_t> shape,
               DType dtype = DType::kFloat32)
      : bytes_(values.size() * SizeOf(dtype)) {
    CopyFromFloat(values, dtype, bytes_.data());
    view_ = {.data = bytes_.data(), .dtype = dtype, .shape = std::move(shape)};
  }
  StoredTensor(const StoredTensor&) = delete;
  StoredTensor& operator=(const StoredTensor&) = delete;

  const TensorView& view() const { return view_; }

 private:
  std::vector<std::byte> bytes_;
  TensorView view_;
};

// The values after being stored.
inline std::vector<float> Rounded(const std::vector<float>& values, DType dtype) {
  const int64_t count = static_cast<int64_t>(values.size());
  const StoredTensor stored(values, {count}, dtype);
  std::vector<float> rounded(values.size());
  CopyToFloat(stored.view(), 0, count, rounded.data());
  return rounded;
}

inline std::vector<BFloat16> ToBFloat16(std::span<const float> values) {
  std::vector<BFloat16> bits(values.size());
  CopyFromFloat(values, DType::kBFloat16, bits.data());
  return bits;
}

inline std::vector<float> ToFloat(const std::vector<BFloat16>& bits) {
  const int64_t count = static_cast<int64_t>(bits.size());
  std::vector<float> values(bits.size());
  CopyToFloat({.data = bits.data(), .dtype = DType::kBFloat16, .shape = {count}}, 0, count,
              values.data());
  return values;
}

}  // namespace diffserve::testing
