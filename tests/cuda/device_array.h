// SPDX-License-Identifier: Apache-2.0
// Vectors on the device, for tests that run on a GPU or, if the backend's source is compiled for
// the CPU, on the shim. Also everything that only the shim's simulated device can do.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/cuda/device.h"
#include "kernels/base/cuda/memory.h"
#include "kernels/ops/weight_format.h"
#if defined(DIFFSERVE_CUDA_ON_CPU)
#include "tests/kernels/shim/host_calls.h"
#endif

namespace diffserve::testing {

#if defined(DIFFSERVE_CUDA_ON_CPU)
inline constexpr bool kHasGpu = false;
#else
inline constexpr bool kHasGpu = true;
#endif

// False without a driver or a device; always true on the shim. A device that is there but cannot be
// opened, as after the fault of an earlier test, is no reason to skip a test, which then fails.
inline bool KernelsCanRun() {
  const Result<cuda::DeviceInfo> device = cuda::OpenDevice(0);
  return device.ok() || device.status().code() != StatusCode::kNotFound;
}

inline bool DeviceMultiplies(WeightFormat format) {
  const Result<cuda::DeviceInfo> device = cuda::OpenDevice(0);
  return format != WeightFormat::kFp8E4M3 || !device.ok() ||
         device->compute_capability >= cuda::kFp8ComputeCapabilityMin;
}

// For tests whose parameter is whether products are batch-invariant.
inline std::string NameOfMode(const ::testing::TestParamInfo<bool>& mode) {
  return mode.param ? "batch_invariant" : "default";
}

// Success of an operation; otherwise a failure with its message and, on the shim, the kernel's
// fault.
inline ::testing::AssertionResult IsOk(const Status& status) {
  if (status.ok()) return ::testing::AssertionSuccess();
#if defined(DIFFSERVE_CUDA_ON_CPU)
  return ::testing::AssertionFailure() << status.message() << "; " << shim::last_failure;
#else
  return ::testing::AssertionFailure() << status.message();
#endif
}

// For a launcher's cudaError_t.
inline ::testing::AssertionResult IsOk(int error) {
  return IsOk(cuda::StatusOfCudaError(error, "a launch"));
}

// `shift` elements in front move the first element off its natural 256-byte alignment.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(const std::vector<T>& values, const cuda::Stream& stream, size_t shift = 0)
      : size_(values.size()), shift_(shift) {
    Result<cuda::DeviceBuffer> buffer = cuda::DeviceBuffer::Allocate((shift + size_) * sizeof(T));
    EXPECT_TRUE(buffer.ok()) << buffer.status().message();
    if (!buffer.ok()) return;
    buffer_ = std::move(*buffer);
    EXPECT_TRUE(IsOk(
        cuda::CopyToDevice(std::as_bytes(std::span(values)), buffer_, shift * sizeof(T), stream)));
    EXPECT_TRUE(IsOk(stream.Synchronize()));
  }

  // nullptr for no elements, as an absent argument.
  T* data() const { return buffer_.data() == nullptr ? nullptr : buffer_.as<T>() + shift_; }
  size_t size() const { return size_; }

  // Waits for the stream, and so reports the faults of its kernels.
  std::vector<T> Read(const cuda::Stream& stream) const {
    std::vector<T> values(size_);
    EXPECT_TRUE(IsOk(cuda::CopyToHost(buffer_, shift_ * sizeof(T),
                                      std::as_writable_bytes(std::span(values)), stream)));
    EXPECT_TRUE(IsOk(stream.Synchronize()));
    return values;
  }

  void Write(const std::vector<T>& values, const cuda::Stream& stream) const {
    EXPECT_TRUE(IsOk(
        cuda::CopyToDevice(std::as_bytes(std::span(values)), buffer_, shift_ * sizeof(T), stream)));
    EXPECT_TRUE(IsOk(stream.Synchronize()));
  }

 private:
  cuda::DeviceBuffer buffer_;
  size_t size_;
  size_t shift_;
};

// Skipped if there is no device.
class OnDeviceTest : public ::testing::Test {
 protected:
#if defined(DIFFSERVE_CUDA_ON_CPU)
  OnDeviceTest() { shim::ResetContext(); }
  ~OnDeviceTest() override {
    shim::ResetContext();
    shim::SetGridOptions({});
    shim::simulated_device = {};
  }
#endif

  void SetUp() override {
    const Result<cuda::DeviceInfo> device = cuda::OpenDevice(0);
    if (!KernelsCanRun()) GTEST_SKIP() << device.status().message();
    ASSERT_TRUE(IsOk(device.status()));
    device_ = *device;
    stream_ = std::make_unique<cuda::Stream>(cuda::Stream::Create().value());
  }

  // A GPU's properties are fixed. There these functions do nothing, and the test's cases repeat on
  // the same device.
#if defined(DIFFSERVE_CUDA_ON_CPU)
  static void SimulateSharedBytes(int bytes) {
    shim::simulated_device.shared_bytes_per_block_max = bytes;
  }
  static void SimulateMultiprocessors(int count) { shim::simulated_device.multiprocessors = count; }
  static void SimulateComputeCapability(int major) {
    shim::simulated_device.compute_capability_major = major;
  }
#else
  static void SimulateSharedBytes(int) {}
  static void SimulateMultiprocessors(int) {}
  static void SimulateComputeCapability(int) {}
#endif

  // On the shim: with other schedules of the threads, and with copies early, late and at any time.
  // On a GPU: a few times.
  template <typename Check>
  static void OnEverySchedule(Check check) {
#if defined(DIFFSERVE_CUDA_ON_CPU)
    for (shim::CopyTiming timing :
         {shim::CopyTiming::kEarly, shim::CopyTiming::kLate, shim::CopyTiming::kShuffled}) {
      for (uint32_t seed = 2; seed < 4; ++seed) {
        shim::SetGridOptions({.seed = seed, .copy_timing = timing});
        check();
      }
    }
    shim::SetGridOptions({});
#else
    for (int i = 0; i < 6; ++i) check();
#endif
  }

  cuda::DeviceInfo device_;
  std::unique_ptr<cuda::Stream> stream_;
};

}  // namespace diffserve::testing
