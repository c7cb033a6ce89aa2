// SPDX-License-Identifier: Apache-2.0
// OutOfMemory: thrown at start-up where a large piece of memory cannot be allocated, with the bytes
// requested and the bytes free, which the program reports.
#pragma once

#include <cstddef>
#include <new>

#include "kernels/process/machine_memory.h"

namespace diffserve {

class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(size_t asked_bytes) : asked_bytes_(asked_bytes), free_(MinFreeMemory()) {}
  const char* what() const noexcept override { return "out of memory"; }
  size_t asked_bytes() const { return asked_bytes_; }
  const FreeMemory& free() const { return free_; }

 private:
  size_t asked_bytes_;
  FreeMemory free_;
};

}  // namespace diffserve
