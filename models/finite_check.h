// FiniteCheck: whether the weights of a tensor are numbers that can be computed with, told of its
// bytes piece by piece as they are read, while they are in the cache. One NaN or infinite weight
// makes every answer wrong or an error.
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
  // `kept_as` is what matrices are rounded to: float32 beyond what bfloat16 holds would become
  // infinite.
  FiniteCheck(DType dtype, DType kept_as);

  // `bytes` begin at element `first`.
  void Add(int64_t first, std::span<const std::byte> bytes);
  void Add(const FiniteCheck& other);  // of other pieces of the same tensor
  // One line that names the tensor, the first such element, and how many there are. REQUIRES: all
  // of the tensor has been added; its data is there.
  Status status(const TensorView& tensor) const;

 private:
  DType dtype_;
  uint32_t limit_;  // bits of the least magnitude that is none of those
  bool rounds_;
  int64_t first_ = -1, count_ = 0;
};

}  // namespace diffserve
