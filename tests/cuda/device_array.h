// A vector on the device, for tests that run on a GPU or, where the kernels' source is compiled for the CPU, on the shim.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "kernels/base/cuda/device.h"
#include "kernels/base/cuda/memory.h"

namespace diffserve::testing {

// Compiled in, but without a device: the test is skipped. On the shim every test runs.
inline bool KernelsCanRun() { return !cuda::IsCompiledIn() || cuda::OpenDevice(0).ok(); }

// What an operation must give; the failure's message otherwise.
inline ::testing::AssertionResult IsOk(const Status& status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << status.message();
}

// `shift` elements in front put the first element off its natural 256-byte alignment.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(const std::vector<T>& values, const cuda::Stream& stream, size_t shift = 0) : size_(values.size()), shift_(shift) {
    Result<cuda::DeviceBuffer> buffer = cuda::DeviceBuffer::Allocate((shift + size_) * sizeof(T));
    EXPECT_TRUE(buffer.ok()) << buffer.status().message();
    if (!buffer.ok()) return;
    buffer_ = std::move(*buffer);
    EXPECT_TRUE(IsOk(cuda::CopyToDevice(std::as_bytes(std::span(values)), buffer_, shift * sizeof(T), stream)));
  }

  T* data() const { return buffer_.as<T>() + shift_; }
  size_t size() const { return size_; }

  std::vector<T> Read(const cuda::Stream& stream) const {
    std::vector<T> values(size_);
    EXPECT_TRUE(IsOk(cuda::CopyToHost(buffer_, shift_ * sizeof(T), std::as_writable_bytes(std::span(values)), stream)));
    EXPECT_TRUE(IsOk(stream.Synchronize()));
    return values;
  }

 private:
  cuda::DeviceBuffer buffer_;
  size_t size_;
  size_t shift_;
};

}  // namespace diffserve::testing
