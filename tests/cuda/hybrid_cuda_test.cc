// SPDX-License-Identifier: Apache-2.0
// Models with different kinds of layers, on the device: windows with their own pages, snapshots of
// states, last layers that take fewer tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "kernels/attention/attention_plan_cuda.h"
#include "tests/cuda/device_array.h"
#include "tests/testing/models/checkpoint_writer.h"
#include "tests/testing/models/golden_case.h"
#include "tests/testing/models/hybrid_fixture.h"
#if defined(DIFFSERVE_CUDA_ON_CPU)
#include "tests/kernels/shim/host_calls.h"
#endif

namespace diffserve {
namespace {

using testing::kGeneratedFrom;
using testing::kLength;
using testing::Part;

class CudaHybridTest : public testing::HybridTest {
 protected:
  void SetUp() override {
    if (!testing::KernelsCanRun()) GTEST_SKIP() << cuda::OpenDevice(0).status().message();
    options_.device = Device::kCuda;
    options_.batch_invariant = true;
  }
  KvFormat FormatOf(const Model& model) const override {
    return cuda::ImageFormat(model.config().attention);
  }
};

// A hit begins at a state saved in the middle of a chunk, and in the window's pages.
TEST_F(CudaHybridTest, EveryScheduleGivesTheSameBits) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "takes minutes with AddressSanitizer; the other tests watch the same code";
#endif
  const GoldenCase golden = ReadGoldenCase("phi4flash_stored_lm_head_shards").value();
  const std::unique_ptr<Model> model = Load();
  ASSERT_NE(model, nullptr);
  std::vector<int32_t> tokens = golden.AllTokens();
  ASSERT_GE(tokens.size(), 102u);
  tokens.resize(102);
  const std::pair<DType, std::vector<size_t>> forms[] = {
      {DType::kBFloat16, {}}, {DType::kInt8KInt4V, {}}, {DType::kInt4, {0, 2}}};
  for (const auto& [pages, skipped_layers] : forms) {
    GoldenRunner runner(*model, tokens.size(), cuda::kPageSize, pages, skipped_layers);
    runner.GenerateFrom(90);
    const GoldenRun whole = runner.Run(GoldenSchedule::kOneChunk, tokens);
    for (GoldenSchedule schedule : kGoldenSchedules) {
      const GoldenRun run = runner.Run(schedule, tokens);
      const auto same_rows = whole.logits.begin() +
                             static_cast<long>(run.first_row * static_cast<size_t>(golden.vocab));
      EXPECT_TRUE(std::equal(run.logits.begin(), run.logits.end(), same_rows))
          << NameOf(schedule) << ", pages of " << NameOf(pages);
    }
  }
}

TEST_F(CudaHybridTest, SkippingLayersOfTokensChangesNoBitOfOtherTokens) {
  ExpectTheBitsAloneOfSomeTokens();
}

#if defined(DIFFSERVE_CUDA_ON_CPU)
TEST_F(CudaHybridTest, LastLayersSkipUnwantedTokens) {
  const std::unique_ptr<Model> model = Load();
  ASSERT_NE(model, nullptr);
  KvCache kv = Cache(*model);
  const auto products = [&](const std::vector<int>& wanted) {
    const int64_t before = shim::multiply_adds;
    Step(*model, kv, {{2, 0, kLength, wanted, {0, 0}}});
    return shim::multiply_adds - before;
  };
  const int64_t all = products({0}), half = products({kLength / 2}), one = products({kLength - 1});
  // Two of eight layers, which have no scan, and most of a third.
  EXPECT_LT(one, all * 3 / 4);
  EXPECT_NEAR(static_cast<double>(half), static_cast<double>(all + one) / 2,
              static_cast<double>(all) / 100);
}
#endif

// Generated tokens with room for the partial results of one: each is its own pass. Later sequences
// begin from states saved before, at and after the end of the prompt.
TEST_F(CudaHybridTest, SnapshotsAreIndependentOfThePasses) {
  for (size_t partial_bytes : {size_t{1}, size_t{256} << 20}) {
    options_.limits.attention_partial_bytes_max = partial_bytes;
    const std::unique_ptr<Model> model = Load();
    ASSERT_NE(model, nullptr);
    KvCache kv = Cache(*model);
    const std::vector<Part> parts = {
        {0, 0, 75, {33, 74}, {0, 0, {{33, 1}, {70, 2}, {72, 3}, {75, 4}}}},
        {1, 0, 62, {61}, {5, 5, {{61, 6}}}}};
    ExpectTheBitsAlone(*model, parts, Step(*model, kv, parts));
    for (const auto& [position, slot] : {std::pair{33, 1}, {70, 2}, {72, 3}, {75, 4}}) {
      const std::vector<Part> rest = {{0, position, 76, {75}, {slot, 7}}};
      ExpectTheBitsAlone(*model, rest, Step(*model, kv, rest));
    }
    for (int slot : {5, 6}) {
      const int position = slot == 5 ? 62 : 61;
      const std::vector<Part> rest = {{1, position, 64, {62, 63}, {slot, 7}}};
      ExpectTheBitsAlone(*model, rest, Step(*model, kv, rest));
    }
  }
}

// Steps that draw run as graphs from their second on; three tokens share the graph of four. The
// slots differ each time.
TEST_F(CudaHybridTest, DecodeGraphsTakeSlotsAndWindowsFromTheStep) {
  const std::unique_ptr<Model> model = Load();
  ASSERT_NE(model, nullptr);
  KvCache kv = Cache(*model);
  std::vector<Part> parts;
  for (int s : {0, 1, 3})
    parts.push_back({s, 0, kGeneratedFrom[s], {}, {static_cast<int>(parts.size()), 0}});
  for (Part& part : parts) part.state.to = part.state.from;
  Step(*model, kv, parts);
  for (int i = 0; i < 20; ++i) {
    std::vector<Part> decode;
    for (Part& part : parts) {
      if (part.sequence == 1 && i % 3 == 2) continue;
      const int32_t from = part.state.to, to = (from + (i % 2 == 0 ? 3 : 0)) % 9;
      part = {part.sequence, part.end, part.end + 1, {part.end}, {from, to}};
      if (i % 4 == 1) part.state.snapshots = {{1, (from + 6) % 9}};
      decode.push_back(part);
      if (i % 4 == 1) part.state.to = (from + 6) % 9;
    }
    Batch batch = BatchOf(decode);
    batch.sample_rows.resize(decode.size(), {.kind = SampleKind::kGreedy});
    EXPECT_TRUE(testing::IsOk(model->Forward(batch, kv)));
    EXPECT_EQ(model->Collect().value().size(), decode.size());
    const auto count = static_cast<int>(decode.size());
    const std::span<const float> logits = model->Logits(0, count).value();
    ExpectTheBitsAlone(*model, decode, {logits.begin(), logits.end()});
  }
}

// Heads as wide as the released checkpoint's, on random weights, against the CPU.
class CudaWideHybridTest : public CudaHybridTest, public ::testing::WithParamInterface<int> {};
// With 5, rows of the selection's inputs are not aligned.
INSTANTIATE_TEST_SUITE_P(States, CudaWideHybridTest, ::testing::Values(16, 5));

TEST_P(CudaWideHybridTest, AgreesWithTheCpu) {
  const TemporaryDirectory directory;
  std::ofstream(directory.path() / "config.json")
      << R"({"model_type": "phi4flash", "hidden_size": 256, "num_attention_heads": 4, )"
      << R"("num_key_value_heads": 2, "num_hidden_layers": 8, "intermediate_size": 64, )"
      << R"("vocab_size": 61, "max_position_embeddings": 256, "hidden_act": "silu", )"
      << R"("sliding_window": 40, "mamba_d_state": )" << GetParam()
      << R"(, "bos_token_id": 1, "eos_token_id": 2})";
  options_.model_dir = directory.path();
  options_.isa = SupportedCpuIsas().front();
  options_.weight_format = WeightFormat::kBFloat16;
  options_.dummy_weights = true;
  options_.seed = 7;
  std::vector<int32_t> tokens(72);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>((i * i + 3 * i) % 61);
  const auto logits = [&] {
    const std::unique_ptr<Model> model = Load();
    GoldenRunner runner(*model, tokens.size(),
                        options_.device == Device::kCpu ? kGoldenPageSize : cuda::kPageSize);
    runner.GenerateFrom(69);
    return runner.Chunks(tokens, 40).logits;
  };
  options_.device = Device::kCpu;
  const std::vector<float> expected = logits();
  options_.device = Device::kCuda;
  for (bool batch_invariant : {true, false}) {
    options_.batch_invariant = batch_invariant;
    const std::vector<float> found = logits();
    float largest = 0, worst = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      largest = std::max(largest, std::abs(expected[i]));
      worst = std::max(worst, std::abs(expected[i] - found[i]));
    }
    EXPECT_LE(worst, 0.02f * largest);
    EXPECT_GT(worst, 0.0f) << "one computed both";
    EXPECT_EQ(logits(), found) << "another run gave other bits";
  }
}

TEST_F(CudaHybridTest, StateSlotsAreAlignedAfterThePagesAndStartFromCopies) {
  const std::unique_ptr<Model> model = Load();
  ASSERT_NE(model, nullptr);
  KvCache kv = Cache(*model);
  const StateSlots slots = kv.StatesFrom(0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(slots.data) % 16, 0u);
  EXPECT_EQ(slots.stride % 4, 0);
  Step(*model, kv, {{0, 0, 33, {}, {0, 0}}});
  EXPECT_TRUE(testing::IsOk(kv.CopyState(0, 7)));
  const std::vector<Part> rest = {{0, 33, 34, {33}, {7, 0}}};
  ExpectTheBitsAlone(*model, rest, Step(*model, kv, rest));
}

}  // namespace
}  // namespace diffserve
