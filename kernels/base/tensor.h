// SPDX-License-Identifier: Apache-2.0
// TensorView: borrowed, contiguous, row-major memory with a dtype and a shape. It never allocates.
// Buffer: owns one 64-byte aligned allocation made at start-up. A large one is 2 MiB aligned,
// advised as huge pages, and takes memory only at the first write to each part. Until then its
// pages are the system's shared zero page, so measurements of reads must write first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"

namespace diffserve {

struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  std::string name = {};  // its name in errors

  int64_t num_elements() const;
  std::string ShapeString() const;  // "[4096, 2048]"
  // The element at flat index i, converted to float32.
  float At(int64_t i) const;
};

// Converts `count` elements from flat index `begin` into out[count].
void CopyToFloat(const TensorView& tensor, int64_t begin, int64_t count, float* out);
// out = the values, of `dtype`, rounded to nearest even.
void CopyFromFloat(std::span<const float> values, DType dtype, void* out);
// Index of a finite value that float16 cannot hold; -1: there is none.
int64_t FindOutsideFloat16(std::span<const float> values);

class Buffer {
 public:
  Buffer() = default;
  // Zero-filled. Without memory it does what operator new does, and throws OutOfMemory. Callers
  // check sizes against the machine first.
  explicit Buffer(size_t size_bytes);

  void* data() { return data_.get(); }
  const void* data() const { return data_.get(); }
  template <typename T>
  T* as() {
    return static_cast<T*>(data_.get());
  }
  template <typename T>
  const T* as() const {
    return static_cast<const T*>(data_.get());
  }
  size_t size_bytes() const { return size_bytes_; }

 private:
  struct Free {
    Free() : mapped_bytes(0) {}
    explicit Free(size_t bytes) : mapped_bytes(bytes) {}
    void operator()(void* p) const;
    size_t mapped_bytes;  // 0: from the heap
  };
  std::unique_ptr<void, Free> data_;
  size_t size_bytes_ = 0;
};

}  // namespace diffserve
