// The row-wise kernels of the device against the references of rowwise.h: on a GPU, or their own
// source on the CPU shim.
#include "kernels/ops/rowwise_cuda.h"

#include <cmath>
#include <limits>

#include "kernels/ops/rowwise.h"
#include "tests/cuda/device_array.h"
#include "tests/testing/kernel_levels.h"

namespace diffserve {
namespace {

using testing::AllClose;
using testing::DeviceArray;
using testing::IsOk;
using testing::RandomFloats;
using testing::SameBits;
using testing::Tolerance;

// Scalar and 16-byte accesses; less than, exactly and more than one round of all threads.
constexpr int kWidths[] = {1, 7, 8, 96, 255, 256, 1000, 2047, 2048, 2049, 3072, 6152};
constexpr Tolerance kRounded = {1e-30, 0x1p-8 * 1.01};  // half a unit of bfloat16 at worst, and
                                                        // float32's own error
constexpr Tolerance kFloat32 = {1e-36, 1e-6};

std::vector<uint16_t> ToBFloat16(const std::vector<float>& values) {
  std::vector<uint16_t> bits(values.size());
  for (size_t i = 0; i < values.size(); ++i) bits[i] = FloatToBFloat16(values[i]);
  return bits;
}

std::vector<float> ToFloat(const std::vector<uint16_t>& bits) {
  std::vector<float> values(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) values[i] = BFloat16ToFloat(bits[i]);
  return values;
}

// As a checkpoint or a matrix product would store them.
std::vector<float> RandomBFloat16(size_t count, uint32_t seed, float low, float high) {
  return ToFloat(ToBFloat16(RandomFloats(count, seed, low, high)));
}

class RowwiseCudaTest : public testing::OnDeviceTest {
 protected:
  // `shift` elements put every pointer off its alignment.
  std::vector<float> SiluMul(const std::vector<float>& x, int rows, size_t shift = 0) {
    return Gated(x, rows, shift,
                 [&](cuda::SiluMulArgs args) { return cuda::SiluMul(args, *stream_); });
  }

  template <typename Call>
  std::vector<float> Gated(const std::vector<float>& x, int rows, size_t shift, Call call) {
    const DeviceArray<uint16_t> in(ToBFloat16(x), *stream_, shift);
    const DeviceArray<uint16_t> out(std::vector<uint16_t>(x.size() / 2), *stream_, shift);
    const int width = static_cast<int>(x.size()) / (2 * rows);
    EXPECT_TRUE(IsOk(call({.x = in.data(), .out = out.data(), .rows = rows, .width = width})));
    return ToFloat(out.Read(*stream_));
  }

  std::vector<float> PolyNormMul(const std::vector<float>& x, int rows, size_t shift = 0) {
    return Gated(x, rows, shift, [&](cuda::SiluMulArgs args) {
      return cuda::PolyNormMul(
          {args.x, args.out, args.rows, args.width, {0.5f, -0.25f, 1.0f}, 0.125f, 1e-6f}, *stream_);
    });
  }

  std::vector<float> RmsNorm(const std::vector<float>& x, const std::vector<float>& weight,
                             int rows, size_t shift = 0) {
    const DeviceArray<float> residual(x, *stream_, shift);
    const DeviceArray<float> scale(weight, *stream_, shift);
    const DeviceArray<uint16_t> out(std::vector<uint16_t>(x.size()), *stream_, shift);
    EXPECT_TRUE(IsOk(cuda::RmsNorm({.residual = residual.data(),
                                    .weight = scale.data(),
                                    .out = out.data(),
                                    .rows = rows,
                                    .width = static_cast<int>(weight.size()),
                                    .eps = 1e-5f},
                                   *stream_)));
    EXPECT_TRUE(SameBits(residual.Read(*stream_), x)) << "the residual was written";
    return ToFloat(out.Read(*stream_));
  }
};

TEST_F(RowwiseCudaTest, RmsNormMatchesTheReferenceAtAnyWidthAndAlignment) {
  constexpr int kRows = 3;
  for (int width : kWidths) {
    const std::vector<float> x = RandomFloats(static_cast<size_t>(kRows * width), 1, -3, 3);
    const std::vector<float> weight = RandomFloats(static_cast<size_t>(width), 2, 0.5f, 1.5f);
    std::vector<float> expected(x.size());
    RmsNormRef({x.data(), weight.data(), expected.data(), kRows, width, 1e-5f});
    EXPECT_TRUE(AllClose(RmsNorm(x, weight, kRows), expected, kRounded)) << width;
    EXPECT_TRUE(AllClose(RmsNorm(x, weight, kRows, 1), expected, kRounded))
        << width << " unaligned";
  }
}

TEST_F(RowwiseCudaTest, RmsNormAddsTheBranchToTheResidualInFloat32) {
  constexpr int kRows = 2;
  for (int width : {5, 1032}) {
    const size_t count = static_cast<size_t>(kRows * width);
    std::vector<float> sum = RandomFloats(count, 3, -3, 3);
    const std::vector<float> branch = RandomBFloat16(count, 4, -1, 1);
    const std::vector<float> weight = RandomFloats(static_cast<size_t>(width), 5, 0.5f, 1.5f);
    const DeviceArray<float> residual(sum, *stream_), scale(weight, *stream_);
    const DeviceArray<uint16_t> add(ToBFloat16(branch), *stream_),
        out(std::vector<uint16_t>(count), *stream_);
    ASSERT_TRUE(IsOk(cuda::RmsNorm({.residual = residual.data(),
                                    .add = add.data(),
                                    .weight = scale.data(),
                                    .out = out.data(),
                                    .rows = kRows,
                                    .width = width,
                                    .eps = 1e-5f},
                                   *stream_)));
    for (size_t i = 0; i < count; ++i) sum[i] += branch[i];
    EXPECT_TRUE(SameBits(residual.Read(*stream_), sum));
    std::vector<float> expected(count);
    RmsNormRef({sum.data(), weight.data(), expected.data(), kRows, width, 1e-5f});
    EXPECT_TRUE(AllClose(ToFloat(out.Read(*stream_)), expected, kRounded)) << width;
  }
}

TEST_F(RowwiseCudaTest, RmsNormGathersTheRowsThatAreAskedFor) {
  constexpr int kRows = 6, kWidth = 72;
  const std::vector<float> x = RandomFloats(kRows * kWidth, 6, -3, 3);
  const std::vector<float> weight = RandomFloats(kWidth, 7, 0.5f, 1.5f);
  const std::vector<float> all = RmsNorm(x, weight, kRows);
  const std::vector<int32_t> rows = {5, 0, 3};
  const DeviceArray<float> residual(x, *stream_), scale(weight, *stream_);
  const DeviceArray<int32_t> source_rows(rows, *stream_);
  const DeviceArray<uint16_t> out(std::vector<uint16_t>(rows.size() * kWidth), *stream_);
  ASSERT_TRUE(IsOk(cuda::RmsNorm({.residual = residual.data(),
                                  .source_rows = source_rows.data(),
                                  .weight = scale.data(),
                                  .out = out.data(),
                                  .rows = 3,
                                  .width = kWidth,
                                  .eps = 1e-5f},
                                 *stream_)));
  const std::vector<float> gathered = ToFloat(out.Read(*stream_));
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_TRUE(SameBits(std::span(gathered).subspan(i * kWidth, kWidth),
                         std::span(all).subspan(static_cast<size_t>(rows[i]) * kWidth, kWidth)));
  }
}

TEST_F(RowwiseCudaTest, ARowsBitsDoNotDependOnTheBatch) {
  constexpr int kRows = 5, kWidth = 1048;
  const std::vector<float> x = RandomBFloat16(2 * kRows * kWidth, 8, -3, 3);
  const std::vector<float> weight = RandomFloats(2 * kWidth, 9, 0.5f, 1.5f);
  const auto row = [&](const std::vector<float>& values, int r) {
    const size_t width = values.size() / kRows;
    return std::vector<float>(values.begin() + static_cast<ptrdiff_t>(r * width),
                              values.begin() + static_cast<ptrdiff_t>((r + 1) * width));
  };
  const std::vector<float> normed = RmsNorm(x, weight, kRows), silu = SiluMul(x, kRows),
                           poly = PolyNormMul(x, kRows);
  for (int r = 0; r < kRows; ++r) {
    EXPECT_TRUE(SameBits(RmsNorm(row(x, r), weight, 1), row(normed, r)));
    EXPECT_TRUE(SameBits(SiluMul(row(x, r), 1), row(silu, r)));
    EXPECT_TRUE(SameBits(PolyNormMul(row(x, r), 1), row(poly, r)));
  }
}

TEST_F(RowwiseCudaTest, SiluMulMatchesTheReferenceAtAnyWidthAndAlignment) {
  constexpr int kRows = 3;
  for (int width : kWidths) {
    const std::vector<float> x = RandomBFloat16(static_cast<size_t>(2 * kRows * width), 10, -20,
                                                20);
    std::vector<float> expected(x.size() / 2);
    SiluMulRef({x.data(), expected.data(), kRows, width});
    EXPECT_TRUE(AllClose(SiluMul(x, kRows), expected, kRounded)) << width;
    EXPECT_TRUE(AllClose(SiluMul(x, kRows, 1), expected, kRounded)) << width << " unaligned";
  }
}

TEST_F(RowwiseCudaTest, SiluMulKeepsTheMeaningOfExtremes) {
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> out = SiluMul({-1e38f, 0, 1e38f, nan, infinity, 1, 1, 1, 1, 1}, 1);
  EXPECT_EQ(out[0], 0.0f);
  EXPECT_EQ(out[1], 0.0f);
  EXPECT_NEAR(out[2], 1e38f, 1e36f);
  EXPECT_TRUE(std::isnan(out[3]));
  EXPECT_EQ(out[4], infinity);
}

TEST_F(RowwiseCudaTest, PolyNormMulMatchesTheReferenceAtAnyWidthAndAlignment) {
  constexpr int kRows = 3;
  for (int width : kWidths) {
    const std::vector<float> x = RandomBFloat16(static_cast<size_t>(2 * kRows * width), 11, -3, 3);
    std::vector<float> expected(x.size() / 2);
    PolyNormMulRef({x.data(), expected.data(), kRows, width, {0.5f, -0.25f, 1.0f}, 0.125f, 1e-6f});
    const Tolerance tolerance = {4e-6, kRounded.relative};  // the terms of the polynomial cancel
    EXPECT_TRUE(AllClose(PolyNormMul(x, kRows), expected, tolerance)) << width;
    EXPECT_TRUE(AllClose(PolyNormMul(x, kRows, 1), expected, tolerance)) << width << " unaligned";
  }
}

TEST_F(RowwiseCudaTest, SigmoidMatchesTheReferenceOverTheWholeRange) {
  for (size_t count : {1u, 8u, 13u, 2048u, 4103u}) {
    std::vector<float> x = RandomFloats(count, 12, -110, 110);
    const DeviceArray<float> device(x, *stream_);
    ASSERT_TRUE(IsOk(cuda::Sigmoid({device.data(), static_cast<int64_t>(count)}, *stream_)));
    SigmoidRef(x);
    EXPECT_TRUE(AllClose(device.Read(*stream_), x, kFloat32)) << count;
  }
}

TEST_F(RowwiseCudaTest, EmbeddingLookupCopiesRowsExactly) {
  constexpr int kVocab = 11;
  const std::vector<int32_t> tokens = {10, 0, 3, 3};
  const DeviceArray<int32_t> ids(tokens, *stream_);
  for (int width : {3, 8, 520, 2056}) {
    const std::vector<float> table = RandomBFloat16(static_cast<size_t>(kVocab * width), 13, -1, 1);
    std::vector<float> expected;
    for (int32_t token : tokens)
      expected.insert(expected.end(), table.begin() + token * width,
                      table.begin() + (token + 1) * width);
    const DeviceArray<float> wide(table, *stream_);
    const DeviceArray<uint16_t> narrow(ToBFloat16(table), *stream_);
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const DeviceArray<float> out(std::vector<float>(expected.size()), *stream_);
      const void* data = dtype == DType::kFloat32 ? static_cast<const void*>(wide.data())
                                                  : narrow.data();
      ASSERT_TRUE(
          IsOk(cuda::EmbeddingLookup({data, dtype, ids.data(), out.data(), 4, width}, *stream_)));
      EXPECT_TRUE(SameBits(out.Read(*stream_), expected)) << width << " " << NameOf(dtype);
    }
  }
}

// x passes 2^32 elements, out 2^31; only the last row is not zero.
TEST_F(RowwiseCudaTest, RowsBeyond2To32ElementsAreReached) {
  if (!testing::kHasGpu) GTEST_SKIP() << "needs a GPU: 16 GiB of device memory";
  const Result<cuda::DeviceMemory> memory = cuda::MemoryOfDevice();
  ASSERT_TRUE(memory.ok());
  if (memory->free_bytes < size_t{16} << 30)
    GTEST_SKIP() << "needs 16 GiB of free device memory, has " << memory->free_bytes;
  constexpr size_t kRows = 65537, kWidth = 32768;
  const std::vector<float> last = RandomBFloat16(2 * kWidth, 14, -3, 3);
  auto x = cuda::DeviceBuffer::Allocate(kRows * 2 * kWidth * 2),
       out = cuda::DeviceBuffer::Allocate(kRows * kWidth * 2);
  ASSERT_TRUE(x.ok() && out.ok());
  ASSERT_TRUE(IsOk(cuda::FillBytes(*x, std::byte{0}, *stream_)));
  const std::vector<uint16_t> bits = ToBFloat16(last);
  ASSERT_TRUE(IsOk(cuda::CopyToDevice(std::as_bytes(std::span(bits)), *x,
                                      (kRows - 1) * 2 * kWidth * 2, *stream_)));
  ASSERT_TRUE(
      IsOk(cuda::SiluMul({x->as<uint16_t>(), out->as<uint16_t>(), kRows, kWidth}, *stream_)));
  std::vector<uint16_t> result(kWidth);
  ASSERT_TRUE(IsOk(cuda::CopyToHost(*out, (kRows - 1) * kWidth * 2,
                                    std::as_writable_bytes(std::span(result)), *stream_)));
  ASSERT_TRUE(IsOk(stream_->Synchronize()));
  EXPECT_TRUE(SameBits(ToFloat(result), SiluMul(last, 1)));
}

TEST_F(RowwiseCudaTest, NoRowsQueueNothing) {
  EXPECT_TRUE(IsOk(cuda::RmsNorm({.rows = 0, .width = 8}, *stream_)));
  EXPECT_TRUE(IsOk(cuda::SiluMul({.rows = 0, .width = 8}, *stream_)));
  EXPECT_TRUE(IsOk(cuda::PolyNormMul({.rows = 0, .width = 8}, *stream_)));
  EXPECT_TRUE(IsOk(cuda::Sigmoid({}, *stream_)));
  EXPECT_TRUE(IsOk(cuda::EmbeddingLookup({.rows = 0, .width = 8}, *stream_)));
  EXPECT_TRUE(IsOk(stream_->Synchronize()));
}

}  // namespace
}  // namespace diffserve
