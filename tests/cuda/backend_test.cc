// The CUDA backend beside its kernels: errors, memory, streams, and cuBLASLt, which may be absent.
// Only in builds that have the backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/base/cuda/error.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/linear_cuda.h"
#include "tests/cuda/device_array.h"
#include "tests/testing/kernel_levels.h"

namespace diffserve {
namespace {

using cuda::MatrixLibrary;
using cuda::StatusOfCudaError;
using testing::AllClose;
using testing::DeviceArray;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::RandomFloats;

TEST(CudaErrorTest, TheCallAndCudasNameAreInTheMessage) {
  EXPECT_TRUE(StatusOfCudaError(0, "cudaMalloc").ok());
  const Status status = StatusOfCudaError(1, "cudaMalloc");
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("cudaMalloc: "));
  EXPECT_THAT(status.message(), HasSubstr("(cudaErrorInvalidValue)"));
}

TEST(CudaErrorTest, OnlyWhatPoisonsTheContextCountsAsLost) {
  for (int sticky : {214, 700, 702, 715, 716, 717, 718, 719}) {
    EXPECT_TRUE(cuda::IsContextLost(StatusOfCudaError(sticky, "a kernel"))) << sticky;
    EXPECT_THAT(StatusOfCudaError(sticky, "a kernel").message(),
                HasSubstr("lost the CUDA context"));
  }
  for (int harmless : {0, 1, 2, 9, 35, 98, 100, 209, 600, 701}) {
    EXPECT_FALSE(cuda::IsContextLost(StatusOfCudaError(harmless, "a kernel"))) << harmless;
  }
  EXPECT_EQ(StatusOfCudaError(2, "cudaMalloc").code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(StatusOfCudaError(35, "cudaSetDevice").code(), StatusCode::kNotFound);
}

#if !defined(DIFFSERVE_CUDA_ON_CPU)  // on the shim cuBLASLt has a replacement, which is always
                                     // there
TEST(MatrixLibraryTest, AnAbsentLibraryIsSaidWithThePlaceThatWasTried) {
  const auto library = MatrixLibrary::Open({.path = "/nonexistent/libcublasLt.so.13"});
  ASSERT_FALSE(library.ok());
  EXPECT_EQ(library.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(library.status().message(), HasSubstr("/nonexistent/libcublasLt.so.13"));
}

TEST(MatrixLibraryTest, ALibraryThatIsSomethingElseIsRefused) {
  const auto library = MatrixLibrary::Open({.path = "libm.so.6"});
  ASSERT_FALSE(library.ok());
  EXPECT_THAT(library.status().message(), HasSubstr("no function cublasLt"));
}

TEST(MatrixLibraryTest, WithoutADeviceOpeningFailsWithAStatus) {
  if (cuda::OpenDevice(0).ok()) GTEST_SKIP() << "there is a device";
  const auto library = MatrixLibrary::Open();
  ASSERT_FALSE(library.ok());
  EXPECT_THAT(library.status().message(), HasSubstr("cublasLt"));
}
#endif

// Everything below needs a device.
class CudaBackendTest : public testing::OnDeviceTest {};

TEST_F(CudaBackendTest, AnAllocationThatDoesNotFitSaysTheSizes) {
  const auto buffer = cuda::DeviceBuffer::Allocate(size_t{1} << 46);
  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(buffer.status().message(), HasSubstr(std::to_string(size_t{1} << 46)));
  EXPECT_TRUE(cuda::DeviceBuffer::Allocate(1 << 20).ok()) << "the error stuck";
}

TEST_F(CudaBackendTest, BytesComeBackFromThePlaceTheyWereCopiedTo) {
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

TEST_F(CudaBackendTest, EventsOrderStreamsAndTakeTime) {
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

struct Matrix {
  std::vector<uint16_t> bits;
  std::vector<float> values;  // of the bits
};

Matrix RandomMatrix(size_t count, uint32_t seed) {
  Matrix matrix;
  for (float value : RandomFloats(count, seed)) {
    matrix.bits.push_back(FloatToBFloat16(value));
    matrix.values.push_back(BFloat16ToFloat(matrix.bits.back()));
  }
  return matrix;
}

TEST_F(CudaBackendTest, LinearMatchesTheReferenceWithBiasAndAccumulation) {
  auto library = MatrixLibrary::Open();
  ASSERT_TRUE(library.ok()) << library.status().message();
  constexpr int kIn = 256, kOut = 384;
  const Matrix weight = RandomMatrix(kIn * kOut, 1);
  const std::vector<float> bias = RandomFloats(kOut, 2);
  const DeviceArray<uint16_t> device_weight(weight.bits, *stream_);
  const DeviceArray<float> device_bias(bias, *stream_);
  for (int rows : testing::kHasGpu ? std::vector<int>{1, 3, 64, 200} : std::vector<int>{1, 5}) {
    for (bool with_bias : {false, true}) {
      for (bool accumulate : {false, true}) {
        const Matrix x = RandomMatrix(static_cast<size_t>(rows) * kIn, 3);
        std::vector<float> y = RandomFloats(static_cast<size_t>(rows) * kOut, 4);
        const DeviceArray<uint16_t> device_x(x.bits, *stream_);
        const DeviceArray<float> device_y(y, *stream_);
        ASSERT_TRUE(IsOk((*library)->Linear({.weight = device_weight.data(),
                                             .in_features = kIn,
                                             .out_features = kOut,
                                             .x = device_x.data(),
                                             .rows = rows,
                                             .y = device_y.data(),
                                             .y_dtype = DType::kFloat32,
                                             .bias = with_bias ? device_bias.data() : nullptr,
                                             .accumulate = accumulate},
                                            *stream_)));
        LinearPart part;
        part.weight = {weight.values.data(), DType::kFloat32, {kOut, kIn}};
        if (with_bias) part.bias = {bias.data(), DType::kFloat32, {kOut}};
        LinearRef(std::span(&part, 1),
                  {.x = x.values.data(), .rows = rows, .y = y.data(), .accumulate = accumulate});
        EXPECT_TRUE(AllClose(device_y.Read(*stream_), y, {1e-4, 1e-5}))
            << rows << with_bias << accumulate;
      }
    }
  }
}

}  // namespace
}  // namespace diffserve
