// SPDX-License-Identifier: Apache-2.0
// FiniteCheck: checks that a tensor's weights are finite. It gets the bytes piece by piece as they
// are read, while they are in the cache. One NaN or infinite weight makes every answer wrong or an
// error.
//
// Thread safety: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/status.h"
#include "kernels/base/tensor.h"

namespace diffserve {

class FiniteCheck {
 public:
  // `kept_as` is the type that matrices are rounded to: a float32 beyond bfloat16's range would
  // become infinite.
  FiniteCheck(DType dtype, DType kept_as);

  // `bytes` begin at element `first`.
  void Add(int64_t first, std::span<const std::byte> bytes);
  void Add(const FiniteCheck& other);  // adds the counts of other pieces of the same tensor
  // One line with the tensor, the first bad element, and their number. REQUIRES: the whole tensor
  // has been added, and its data is still there.
  Status status(const TensorView& tensor) const;

 private:
  DType dtype_;
  uint32_t limit_;  // bits of the smallest magnitude that counts as not finite
  bool rounds_;
  int64_t first_ = -1, count_ = 0;
};

}  // namespace diffserve
