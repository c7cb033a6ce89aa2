// SPDX-License-Identifier: Apache-2.0
// The CUDA backend apart from its kernels: errors, memory, streams. Only in builds that have the
// backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "kernels/base/cuda/error.h"
#include "tests/cuda/device_array.h"

namespace diffserve {
namespace {

using cuda::StatusOfCudaError;
using ::testing::HasSubstr;
using testing::IsOk;
using ::testing::Not;

TEST(CudaErrorTest, MessageHasTheCallAndCudasErrorName) {
  EXPECT_TRUE(StatusOfCudaError(0, "cudaMalloc").ok());
  const Status status = StatusOfCudaError(1, "cudaMalloc");
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("cudaMalloc: "));
  EXPECT_THAT(status.message(), HasSubstr("(cudaErrorInvalidValue)"));
}

TEST(CudaErrorTest, OnlyErrorsThatPoisonTheContextLoseTheDevice) {
  for (int sticky :
       {214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911, 999}) {
    EXPECT_TRUE(cuda::IsDeviceLost(StatusOfCudaError(sticky, "a kernel"))) << sticky;
    EXPECT_THAT(StatusOfCudaError(sticky, "a kernel").message(),
                HasSubstr("lost the CUDA context"));
  }
  for (int busy : {46, 100, 802, 806, 807}) {
    EXPECT_TRUE(cuda::IsDeviceLost(StatusOfCudaError(busy, "cudaSetDevice"))) << busy;
    EXPECT_THAT(StatusOfCudaError(busy, "cudaSetDevice").message(), Not(HasSubstr("lost")));
  }
  for (int harmless : {0, 1, 2, 9, 35, 98, 209, 600, 701}) {
    EXPECT_FALSE(cuda::IsDeviceLost(StatusOfCudaError(harmless, "a kernel"))) << harmless;
  }
  EXPECT_EQ(StatusOfCudaError(2, "cudaMalloc").code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(StatusOfCudaError(35, "cudaSetDevice").code(), StatusCode::kNotFound);
}

// Everything below needs a device.
class CudaBackendTest : public testing::OnDeviceTest {};

#if defined(DIFFSERVE_CUDA_ON_CPU)
TEST_F(CudaBackendTest, DeviceNewerThanTheMachineCodeNeedsCompilation) {
  for (const auto& [major, needs] : {std::pair(8, false), {9, false}, {10, true}, {12, true}}) {
    SimulateComputeCapability(major);
    EXPECT_EQ(cuda::OpenDevice(0).value().needs_compilation, needs) << major;
  }
}
#endif

#if defined(DIFFSERVE_CUDA_ON_CPU)
TEST_F(CudaBackendTest, StreamAndMemoryBelongToTheDeviceThatWasOpened) {
  shim::simulated_device.count = 3;
  EXPECT_EQ(cuda::OpenDevice(2)->uuid, "GPU-00000000-0000-0000-0000-000000000002");
  EXPECT_EQ(cuda::OpenDevice(3).status().message(),
            "cuda:3 does not exist; CUDA shows 3 GPUs: cuda:0 CPU shim, cuda:1 CPU shim, "
            "cuda:2 CPU shim");
  const auto buffer = cuda::DeviceBuffer::Allocate(1000);
  const auto stream = cuda::Stream::Create();
  ASSERT_TRUE(buffer.ok() && stream.ok());
  EXPECT_EQ(shim::AllocatedDeviceBytes(2), 1000u);
  std::thread([&] {
    EXPECT_FALSE(cuda::FillBytes(*buffer, std::byte{1}, *stream).ok()) << "no device was set";
    EXPECT_TRUE(IsOk(stream->UseDevice()));
    EXPECT_TRUE(IsOk(cuda::FillBytes(*buffer, std::byte{1}, *stream)));
    EXPECT_TRUE(IsOk(stream->Synchronize()));
  }).join();
}

TEST_F(CudaBackendTest, NoVisibleDeviceIsNamedAsSuch) {
  shim::simulated_device.count = 0;
  const Status status = cuda::OpenDevice(0).status();
  EXPECT_EQ(status.code(), StatusCode::kDeviceLost);
  EXPECT_THAT(status.message(), HasSubstr("the NVIDIA driver shows no device"));
}
#endif

TEST_F(CudaBackendTest, TooLargeAllocationReportsTheSizes) {
  const auto buffer = cuda::DeviceBuffer::Allocate(size_t{1} << 46);
  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(buffer.status().message(), HasSubstr(std::to_string(size_t{1} << 46)));
  EXPECT_TRUE(cuda::DeviceBuffer::Allocate(1 << 20).ok()) << "the error stuck";
}

TEST_F(CudaBackendTest, CopiedBytesAreReadBack) {
  auto buffer = cuda::DeviceBuffer::Allocate(1000);
  auto pinned = cuda::PinnedBuffer::Allocate(1000);
  ASSERT_TRUE(buffer.ok() && pinned.ok());
  ASSERT_TRUE(IsOk(cuda::FillBytes(*buffer, std::byte{7}, *stream_)));
  const std::byte three[] = {std::byte{1}, std::byte{2}, std::byte{3}};
  ASSERT_TRUE(IsOk(cuda::CopyToDevice(three, *buffer, 997, *stream_)));
  ASSERT_TRUE(IsOk(cuda::CopyToHost(*buffer, 0, pinned->bytes(), *stream_)));
  ASSERT_TRUE(IsOk(stream_->Synchronize()));
  EXPECT_EQ(pinned->bytes()[0], std::byte{7});
  EXPECT_EQ(pinned->bytes()[996], std::byte{7});
  EXPECT_EQ(pinned->bytes()[997], std::byte{1});
  EXPECT_EQ(pinned->bytes()[999], std::byte{3});
}

TEST_F(CudaBackendTest, CopyOfRowsLeavesTheBytesBetweenThem) {
  auto from = cuda::DeviceBuffer::Allocate(12), to = cuda::DeviceBuffer::Allocate(9);
  auto pinned = cuda::PinnedBuffer::Allocate(9);
  ASSERT_TRUE(from.ok() && to.ok() && pinned.ok());
  std::byte numbers[12];
  for (size_t i = 0; i < 12; ++i) numbers[i] = static_cast<std::byte>(i);
  ASSERT_TRUE(IsOk(cuda::CopyToDevice(numbers, *from, 0, *stream_)));
  ASSERT_TRUE(IsOk(cuda::FillBytes(*to, std::byte{99}, *stream_)));
  ASSERT_TRUE(IsOk(cuda::CopyRowsOnDevice({.from = from->as<std::byte>() + 1,
                                           .from_stride = 4,
                                           .to = to->data(),
                                           .to_stride = 3,
                                           .row_bytes = 2,
                                           .num_rows = 3},
                                          *stream_)));
  ASSERT_TRUE(IsOk(cuda::CopyToHost(*to, 0, pinned->bytes(), *stream_)));
  ASSERT_TRUE(IsOk(stream_->Synchronize()));
  std::vector<int> found;
  for (std::byte number : pinned->bytes()) found.push_back(std::to_integer<int>(number));
  EXPECT_EQ(found, (std::vector<int>{1, 2, 99, 5, 6, 99, 9, 10, 99}));
  EXPECT_TRUE(IsOk(cuda::CopyRowsOnDevice({}, *stream_)));
}

TEST_F(CudaBackendTest, EventsOrderStreamsAndMeasureTime) {
  auto begin = cuda::Event::Create(true), end = cuda::Event::Create(true);
  auto other = cuda::Stream::Create();
  auto buffer = cuda::DeviceBuffer::Allocate(64 << 20);
  ASSERT_TRUE(begin.ok() && end.ok() && other.ok() && buffer.ok());
  ASSERT_TRUE(IsOk(stream_->Record(*begin)));
  ASSERT_TRUE(IsOk(cuda::FillBytes(*buffer, std::byte{1}, *stream_)));
  ASSERT_TRUE(IsOk(stream_->Record(*end)));
  ASSERT_TRUE(IsOk(end->Wait()));
  std::byte last{};
  ASSERT_TRUE(IsOk(cuda::CopyToHost(*buffer, buffer->size_bytes() - 1, {&last, 1}, *other)));
  ASSERT_TRUE(IsOk(other->Synchronize()));
  EXPECT_EQ(last, std::byte{1});
  EXPECT_GT(cuda::MillisecondsBetween(*begin, *end).value(), 0.0f);
}

}  // namespace
}  // namespace diffserve
