// OutOfMemory: what is thrown where a large piece of memory cannot be had, with the number of bytes
// that was asked for and what was free. Caught where every std::bad_alloc is: at the start by the
// program, which tells the numbers.
#pragma once

#include <cstddef>
#include <new>

#include "kernels/base/machine_memory.h"

namespace diffserve {

class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(size_t asked_bytes) : asked_bytes_(asked_bytes), free_(LeastFreeMemory()) {}
  const char* what() const noexcept override { return "out of memory"; }
  size_t asked_bytes() const { return asked_bytes_; }
  const FreeMemory& free() const { return free_; }

 private:
  size_t asked_bytes_;
  FreeMemory free_;
};

}  // namespace diffserve
