// SPDX-License-Identifier: Apache-2.0
// The host's side of cuBLASLt: how it is found, and which of its kernels are taken.
#include "kernels/ops/matrix_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cuda/device_array.h"
#include "tests/testing/kernels/stored_values.h"
#if defined(DIFFSERVE_CUDA_ON_CPU)
#include "tests/kernels/shim/simulated_products.h"
#endif

namespace diffserve {
namespace {

using cuda::MatrixLibrary;
using cuda::MatrixLibraryOptions;
using cuda::MatrixProduct;
using testing::DeviceArray;
using ::testing::HasSubstr;
using testing::IsOk;

TEST(MatrixLibraryTest, MissingLibraryIsReportedWithTheTriedPath) {
  const auto library = MatrixLibrary::Open({.path = "/nonexistent/libcublasLt.so.13"});
  ASSERT_FALSE(library.ok());
  EXPECT_EQ(library.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(library.status().message(), HasSubstr("/nonexistent/libcublasLt.so.13"));
}

TEST(MatrixLibraryTest, UnrelatedLibraryIsRefused) {
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

constexpr int kIn = 40, kOut = 24, kStride = 56;

// Products of one matrix with rows of x that are kStride apart, added to y.
class MatrixProductTest : public testing::OnDeviceTest {
 protected:
  void SetUp() override {
    OnDeviceTest::SetUp();
    if (IsSkipped()) return;
    weight_ = Upload(testing::RandomFloats(kOut * kIn, 1));
    bias_ = std::make_unique<DeviceArray<float>>(testing::RandomFloats(kOut, 2), *stream_);
    x_ = Upload(testing::RandomFloats(kRowsMax * kStride, 3));
  }
  std::unique_ptr<DeviceArray<BFloat16>> Upload(const std::vector<float>& values) const {
    return std::make_unique<DeviceArray<BFloat16>>(testing::ToBFloat16(values), *stream_);
  }

  std::vector<float> Multiply(const MatrixLibraryOptions& options, int num_rows) const {
    const auto library = MatrixLibrary::Open(options).value();
    const DeviceArray<float> y(testing::RandomFloats(static_cast<size_t>(num_rows) * kOut, 4),
                               *stream_);
    EXPECT_TRUE(IsOk(library->Multiply({.weight = weight_->data(),
                                        .in_features = kIn,
                                        .out_features = kOut,
                                        .x = x_->data(),
                                        .x_stride = kStride,
                                        .num_rows = num_rows,
                                        .y = y.data(),
                                        .y_dtype = DType::kFloat32,
                                        .bias = bias_->data(),
                                        .accumulate = true},
                                       *stream_)));
    return y.Read(*stream_);
  }

  static constexpr int kRowsMax = 300;
  std::unique_ptr<DeviceArray<BFloat16>> weight_, x_;
  std::unique_ptr<DeviceArray<float>> bias_;
};

TEST_F(MatrixProductTest, RowHasTheSameBitsInEveryNumberOfRows) {
  const MatrixLibraryOptions invariant = {.batch_invariant = true};
  const std::vector<float> all = Multiply(invariant, kRowsMax);
  for (int rows : {1, 2, 7, 64, 127, 128, 129, 255}) {
    const std::vector<float> some = Multiply(invariant, rows);
    EXPECT_TRUE(testing::SameBits(some, std::span(all).first(some.size()))) << rows;
  }
}

#if defined(DIFFSERVE_CUDA_ON_CPU)
class SimulatedProductsTest : public MatrixProductTest {
 protected:
  ~SimulatedProductsTest() override { shim::simulated_products = {}; }
};

TEST_F(SimulatedProductsTest, BatchInvariantProductsTakeNoKernelThatSplits) {
  const std::vector<float> unsplit = Multiply({}, 5);
  shim::simulated_products.split_k_of_first_candidate = 3;
  EXPECT_EQ(Multiply({.batch_invariant = true}, 5), unsplit);
  EXPECT_NE(Multiply({}, 5), unsplit) << "the best kernel splits, and is taken by default";
}

// cuBLASLt may round them to y's type if it is not told otherwise.
TEST_F(SimulatedProductsTest, PartsOfASplitProductAreNotRounded) {
  shim::simulated_products.split_k_of_first_candidate = 2;
  const auto library = MatrixLibrary::Open().value();
  const DeviceArray<BFloat16> y(std::vector<BFloat16>(5 * kOut), *stream_);
  const DeviceArray<float> sums(std::vector<float>(5 * kOut), *stream_);
  MatrixProduct product = {.weight = weight_->data(),
                           .in_features = kIn,
                           .out_features = kOut,
                           .x = x_->data(),
                           .x_stride = kStride,
                           .num_rows = 5,
                           .y = y.data()};
  ASSERT_TRUE(IsOk(library->Multiply(product, *stream_)));
  product.y = sums.data();
  product.y_dtype = DType::kFloat32;
  ASSERT_TRUE(IsOk(library->Multiply(product, *stream_)));
  EXPECT_EQ(y.Read(*stream_), testing::ToBFloat16(sums.Read(*stream_)));
}

TEST_F(SimulatedProductsTest, NumberOfRowsThatTheKernelRefusesIsPaddedWithTheSameBits) {
  for (int rows : {1, 7, 127, 129, kRowsMax}) {
    shim::simulated_products = {};
    const std::vector<float> expected = Multiply({.batch_invariant = true}, rows);
    shim::simulated_products = {.rows_refused = rows};
    EXPECT_EQ(Multiply({.batch_invariant = true}, rows), expected) << rows;
    EXPECT_EQ(shim::simulated_products.rows_multiplied, (rows + 127) / 128 * 128);
  }
}

TEST_F(SimulatedProductsTest, KernelThatNeedsMoreMemoryThanThereIsIsRefused) {
  const auto library = MatrixLibrary::Open({.workspace_bytes = 32}).value();
  EXPECT_EQ(
      library
          ->Multiply({.in_features = 8, .out_features = 8, .x_stride = 8, .num_rows = 1}, *stream_)
          .code(),
      StatusCode::kUnimplemented);
}
#endif

}  // namespace
}  // namespace diffserve
