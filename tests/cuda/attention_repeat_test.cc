// SPDX-License-Identifier: Apache-2.0
// Faults that show only when kernels really run in parallel: the same bits a thousand times, singly
// and in a graph, and pages beyond 2^31 elements. On the shim a few runs prove that the tests
// themselves work.
#include <cuda_runtime.h>

#include <random>

#include "kernels/ops/rope_append.h"
#include "tests/cuda/attention_on_device.h"
#include "tests/testing/kernels/attention_rounding.h"
#include "tests/testing/kernels/attention_specs.h"

namespace diffserve {
namespace {

using testing::AttentionRun;
using testing::DiffLlamaSpec;
using testing::GroupedSpec;
using testing::ImageBatch;
using testing::IsOk;
using testing::kHasGpu;
using testing::PlainSpec;
using testing::SequenceShape;
using testing::V2Spec;

constexpr int kRepeats = kHasGpu ? 1000 : 2;

class AttentionRepeatTest : public testing::OnDeviceTest {
 protected:
  // Many items of several splits with partial pages: decode's merge writes into the ring that the
  // next item's bulk copies fill.
  static std::vector<SequenceShape> DecodeShapes() {
    std::vector<SequenceShape> shapes = {{1100, 1}, {530, 1}, {70, 1}, {0, 1}, {61, 2}};
    std::mt19937 generator(7);
    for (int i = 0; i < (kHasGpu ? 59 : 1); ++i)
      shapes.push_back({static_cast<int>(generator() % 1800), 1});
    return shapes;
  }
  static std::vector<DiffSpec> Specs() {
    if (!kHasGpu) return {DiffLlamaSpec(2, 1, 64)};
    return {DiffLlamaSpec(4, 2, 64), DiffLlamaSpec(2, 1, 128), V2Spec(8, 2, 128),
            PlainSpec(8, 2, 64), GroupedSpec(1, 96)};
  }
  void ExpectSameBitsOfDecode(const ImageBatch& batch) {
    const int rows = testing::RowsPerSequenceMax(batch);
    AttentionRun run(batch, cuda::DiffDecodeTiling(batch.spec, rows, batch.window), *stream_);
    run.Queue();
    const std::vector<uint16_t> expected = run.Out();
    for (int i = 0; i < kRepeats; ++i) {
      run.PoisonOut();
      run.Queue(i % 8 != 7);
      ASSERT_EQ(run.Out(), expected) << testing::Describe(batch.spec) << ", run " << i;
    }
  }
};

TEST_F(AttentionRepeatTest, DecodeGivesTheSameBitsEveryTime) {
  for (const DiffSpec& spec : Specs()) {
    ImageBatch batch(spec, DecodeShapes());
    ExpectSameBitsOfDecode(batch);
  }
}

// Slots before the window are zeroed in the window's first strips, in stages that later strips
// refill. Splits end inside the window, and the ring runs on from one to the next.
TEST_F(AttentionRepeatTest, DecodeThroughAWindowGivesTheSameBitsEveryTime) {
  for (const DiffSpec& spec : Specs()) {
    std::vector<SequenceShape> shapes;
    for (int i = 0; i < (kHasGpu ? 64 : 3); ++i) shapes.push_back({1030 + 21 * i, 1});
    ImageBatch batch(spec, shapes);
    batch.window = 512;
    batch.ForgetPagesBehindWindow();
    ExpectSameBitsOfDecode(batch);
  }
}

TEST_F(AttentionRepeatTest, PrefillGivesTheSameBitsEveryTime) {
  const std::vector<SequenceShape> small = {{0, 40}, {70, 9}};
  const std::vector<SequenceShape> shapes = {{0, 300}, {130, 77},  {64, 1},
                                             {0, 0},   {1000, 65}, {3, 128}};
  for (const DiffSpec& spec : Specs()) {
    ImageBatch batch(spec, kHasGpu ? shapes : small);
    for (bool bulk_copies : {true, false}) {
      AttentionRun run(batch, cuda::DiffPrefillTiling(spec, bulk_copies), *stream_);
      run.Queue(bulk_copies);
      const std::vector<uint16_t> expected = run.Out();
      for (int i = 0; i < kRepeats; ++i) {
        run.PoisonOut();
        run.Queue(bulk_copies);
        ASSERT_EQ(run.Out(), expected)
            << testing::Describe(spec) << (bulk_copies ? "" : ", portable") << ", run " << i;
      }
    }
  }
}

// A graph's kernels follow each other without the host between them: each must see what the one
// before wrote.
TEST_F(AttentionRepeatTest, DecodeInAGraphGivesTheSameBitsEveryTime) {
  for (const DiffSpec& spec : Specs()) {
    ImageBatch batch(spec, DecodeShapes());
    AttentionRun run(batch, cuda::DiffDecodeTiling(spec, testing::RowsPerSequenceMax(batch)),
                     *stream_);
    run.Queue();
    const std::vector<uint16_t> expected = run.Out();

    ASSERT_TRUE(IsOk(cudaStreamBeginCapture(stream_->handle(), cudaStreamCaptureModeThreadLocal)));
    run.Queue();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    ASSERT_TRUE(IsOk(cudaStreamEndCapture(stream_->handle(), &graph)));
    ASSERT_TRUE(IsOk(cudaGraphInstantiate(&exec, graph, 0)));
    for (int i = 0; i < kRepeats; ++i) {
      run.PoisonOut();
      ASSERT_TRUE(IsOk(cudaGraphLaunch(exec, stream_->handle())));
      ASSERT_EQ(run.Out(), expected) << testing::Describe(spec) << ", run " << i;
    }
    EXPECT_TRUE(IsOk(cudaGraphExecDestroy(exec)));
    EXPECT_TRUE(IsOk(cudaGraphDestroy(graph)));
  }
}

// Splits have no kernel of their own to merge them.
TEST_F(AttentionRepeatTest, DecodeIsOneKernelPerLayer) {
  ImageBatch batch(DiffLlamaSpec(2, 1, 64), {{3, 1}, {cuda::kSplitSlotsMin, 1}});
  AttentionRun run(batch, cuda::DiffDecodeTiling(batch.spec, 1), *stream_);
  ASSERT_TRUE(IsOk(stream_->Synchronize()));
  ASSERT_TRUE(IsOk(cudaStreamBeginCapture(stream_->handle(), cudaStreamCaptureModeThreadLocal)));
  run.Queue();
  cudaGraph_t graph = nullptr;
  ASSERT_TRUE(IsOk(cudaStreamEndCapture(stream_->handle(), &graph)));
  size_t num_nodes = 0;
  EXPECT_TRUE(IsOk(cudaGraphGetNodes(graph, nullptr, &num_nodes)));
  EXPECT_EQ(num_nodes, 1u);
  EXPECT_TRUE(IsOk(cudaGraphDestroy(graph)));
}

// Page ids so high that element offsets exceed 2^32 (which would wrap a 32-bit offset, signed or
// not).
class FarPagesTest : public testing::OnDeviceTest {
 protected:
  void SetUp() override {
    OnDeviceTest::SetUp();
    if (IsSkipped() || !kHasGpu) return;
    const Result<cuda::DeviceMemory> memory = cuda::MemoryOfDevice();
    ASSERT_TRUE(memory.ok());
    if (memory->free_bytes < size_t{10} << 30)
      GTEST_SKIP() << "needs 10 GiB of free device memory, has " << memory->free_bytes;
  }
  // For one group and pages of `elements` elements.
  static int32_t PagesBefore(int elements) {
    return kHasGpu ? static_cast<int32_t>((int64_t{1} << 32) / elements + 1) : 3;
  }
};

TEST_F(FarPagesTest, DecodeAndPrefillReadFarPagesLikeNearOnes) {
  const DiffSpec spec = DiffLlamaSpec(2, 1, 128);
  ImageBatch batch(spec, {{600, 1}, {70, 3}});
  const int32_t pages_before = PagesBefore(cuda::ImageFormat(spec).PageElements());
  for (bool bulk_copies : {true, false}) {
    AttentionRun run(batch, cuda::DiffDecodeTiling(spec, testing::RowsPerSequenceMax(batch)),
                     *stream_, {.pages_before = pages_before});
    run.Queue(bulk_copies);
    EXPECT_TRUE(
        testing::SameBits(testing::ToFloats(run.Out()), testing::Decode(batch, bulk_copies)));
  }
  for (bool bulk_copies : {true, false}) {
    AttentionRun run(batch, cuda::DiffPrefillTiling(spec, bulk_copies), *stream_,
                     {.pages_before = pages_before});
    run.Queue(bulk_copies);
    EXPECT_TRUE(
        testing::SameBits(testing::ToFloats(run.Out()), testing::Prefill(batch, bulk_copies)));
  }
}

TEST_F(FarPagesTest, AppendWritesFarPagesLikeNearOnes) {
  const DiffSpec spec = DiffLlamaSpec(2, 1, 64);
  ImageBatch batch(spec, {{60, 9}});
  const testing::DeviceArray<float> angles(testing::RandomFloats(128 * 32, 3), *stream_);
  const size_t width = static_cast<size_t>(spec.q_width() + spec.k_width() + spec.v_width());
  const testing::DeviceArray<BFloat16> qkv(testing::ToBFloat16(testing::RandomFloats(9 * width, 4)),
                                           *stream_);
  const testing::DeviceArray<BFloat16> q(
      std::vector<BFloat16>(9 * static_cast<size_t>(spec.q_width())), *stream_);
  const auto append = [&](int32_t pages_before) {
    const testing::DevicePages pages(batch.memory, *stream_, {.pages_before = pages_before});
    EXPECT_TRUE(IsOk(cuda::RopeAppend({.spec = spec,
                                       .batch = pages.Batch(),
                                       .kv = pages.kv(),
                                       .rope = {angles.data(), angles.data(), 32, 128},
                                       .style = RopeStyle::kHalfSplit,
                                       .qkv = qkv.data(),
                                       .q = q.data()},
                                      *stream_)));
    return pages.Read(*stream_);
  };
  const std::vector<std::byte> near = append(0);
  EXPECT_NE(near, batch.memory.bytes());
  EXPECT_EQ(append(PagesBefore(cuda::ImageFormat(spec).PageElements())), near);
}

}  // namespace
}  // namespace diffserve
