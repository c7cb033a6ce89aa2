// SPDX-License-Identifier: Apache-2.0
// The convolution, scan and gate of Mamba layers on every backend.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/testing/kernels/mamba_backends.h"
#include "tests/testing/kernels/stored_values.h"

namespace diffserve {
namespace {

using testing::AllClose;
using testing::ConvCase;
using testing::KernelOp;
using testing::MambaBackend;
using testing::RandomFloats;
using testing::Rounded;
using testing::SameBits;
using testing::ScanCase;
using testing::StatefulRows;
using testing::ToleranceOf;

constexpr float kUntouched = -77.0f;  // initial content of `out`
constexpr int kStrideGap = 5;  // between slots, and between rows that are parts of wider ones

enum class Start { kFresh, kInPlace, kElsewhere };
struct StateShape {
  int num_tokens;
  Start start;
};

// Fewer tokens than the convolution's width, runs of tokens with and without a remainder, none.
const std::vector<StateShape> kRagged = {
    {1, Start::kFresh},    {1, Start::kInPlace},   {2, Start::kElsewhere}, {5, Start::kElsewhere},
    {37, Start::kFresh},   {0, Start::kInPlace},   {3, Start::kInPlace},   {32, Start::kElsewhere},
    {71, Start::kInPlace}, {0, Start::kElsewhere}, {16, Start::kFresh},    {7, Start::kFresh}};

int NumSlots(const std::vector<StateShape>& shapes) { return 2 * static_cast<int>(shapes.size()); }

// A row of no sequence before each sequence and after the last one.
StatefulRows RowsOf(const std::vector<StateShape>& shapes) {
  StatefulRows rows;
  int first_row = 1;
  for (const auto& [num_tokens, start] : shapes) {
    const int to = 2 * static_cast<int>(rows.sequences.size());
    const int from = start == Start::kFresh ? kNoState : start == Start::kInPlace ? to : to + 1;
    rows.sequences.push_back({first_row, num_tokens, from, to});
    first_row += num_tokens + 1;
  }
  return rows;
}

size_t NumRows(const StatefulRows& rows) {
  return static_cast<size_t>(rows.sequences.back().first_row + rows.sequences.back().num_tokens +
                             1);
}

class MambaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (backends_.empty()) GTEST_SKIP() << "there is no device";
  }

  const std::vector<MambaBackend> backends_ = testing::MambaBackends();
};

std::vector<float> RandomOf(DType dtype, size_t count, uint32_t seed, float low, float high) {
  return Rounded(RandomFloats(count, seed, low, high), dtype);
}

ConvCase MakeConv(DType dtype, const std::vector<StateShape>& shapes, int channels, int width) {
  ConvCase conv = {.rows = RowsOf(shapes),
                   .channels = channels,
                   .width = width,
                   .x_stride = channels + kStrideGap,
                   .slot_stride = int64_t{width - 1} * channels + kStrideGap};
  const size_t rows = NumRows(conv.rows), size = static_cast<size_t>(channels);
  conv.x = RandomOf(dtype, rows * static_cast<size_t>(conv.x_stride), 1, -2, 2);
  conv.taps = RandomFloats(size * static_cast<size_t>(width), 2);
  conv.bias = RandomFloats(size, 3);
  conv.out.assign(rows * size, kUntouched);
  // Rows of x, like those in a state.
  conv.state = RandomOf(
      dtype, static_cast<size_t>(NumSlots(shapes)) * static_cast<size_t>(conv.slot_stride), 4, -2,
      2);
  return conv;
}

ScanCase MakeScan(DType dtype, const std::vector<StateShape>& shapes, int channels, int states) {
  ScanCase scan = {.rows = RowsOf(shapes),
                   .channels = channels,
                   .states = states,
                   .bc_stride = 2 * int64_t{states} + kStrideGap,
                   .z_stride = channels + kStrideGap,
                   .slot_stride = int64_t{states} * channels + kStrideGap};
  const size_t rows = NumRows(scan.rows), size = static_cast<size_t>(channels);
  scan.x = RandomOf(dtype, rows * size, 1, -2, 2);
  scan.dt = RandomOf(dtype, rows * size, 2, -6, 2);
  scan.dt_bias = RandomFloats(size, 3);
  scan.bc = RandomOf(dtype, rows * static_cast<size_t>(scan.bc_stride), 4, -1, 1);
  scan.rates = ScanRates(RandomFloats(size * static_cast<size_t>(states), 5, -3, 3), channels,
                         states);
  scan.skip = RandomFloats(size, 6);
  scan.z = RandomOf(dtype, rows * static_cast<size_t>(scan.z_stride), 7, -4, 4);
  scan.out.assign(rows * size, kUntouched);
  scan.state = RandomFloats(
      static_cast<size_t>(NumSlots(shapes)) * static_cast<size_t>(scan.slot_stride), 8);
  return scan;
}

void RunReference(ConvCase& conv) { CausalConvRef(conv.Args()); }
void RunReference(ScanCase& scan) { SelectiveScanRef(scan.Args()); }
void Run(const MambaBackend& backend, ConvCase& conv) { backend.conv(conv); }
void Run(const MambaBackend& backend, ScanCase& scan) { backend.scan(scan); }

// Rows of no sequence, slots that are `to` of none, and gaps between slots.
template <typename Case>
void ExpectOthersUntouched(const MambaBackend& backend, Case before, const Case& after) {
  std::vector<bool> rows(NumRows(before.rows)), numbers(before.state.size());  // written
  for (const StateSequence& sequence : before.rows.sequences) {
    if (sequence.num_tokens == 0) continue;
    std::fill_n(rows.begin() + sequence.first_row, sequence.num_tokens, true);
    std::fill_n(numbers.begin() + sequence.to * before.slot_stride, before.Args().StateFloats(),
                true);
  }
  for (size_t i = 0; i < after.out.size(); ++i) {
    const bool is_written = rows[i / static_cast<size_t>(before.channels)];
    ASSERT_EQ(after.out[i] != kUntouched, is_written) << backend.name << ", number " << i;
  }
  for (size_t i = 0; i < after.state.size(); ++i) {
    ASSERT_TRUE(numbers[i] || after.state[i] == before.state[i])
        << backend.name << ", number " << i << " of the states";
  }
}

template <typename Case>
void ExpectLikeReference(const MambaBackend& backend, const Case& problem, KernelOp op,
                         testing::Tolerance state_tolerance) {
  Case expected = problem, found = problem;
  RunReference(expected);
  Run(backend, found);
  EXPECT_TRUE(AllClose(found.out, expected.out, ToleranceOf(op, backend.activations)))
      << backend.name << ", " << problem.channels << " channels";
  EXPECT_TRUE(AllClose(found.state, expected.state, state_tolerance))
      << backend.name << ", state of " << problem.channels << " channels";
  ExpectOthersUntouched(backend, problem, found);
}

// The same rows in chunks: the slots carry a sequence from each chunk to the next.
template <typename Case>
void RunInChunks(const MambaBackend& backend, int chunk, Case& problem) {
  const std::vector<StateSequence> whole = problem.rows.sequences;
  bool is_done = false;
  for (int begin = 0; !is_done; begin += chunk) {
    is_done = true;
    problem.rows.sequences.clear();
    for (const StateSequence& sequence : whole) {
      if (begin >= sequence.num_tokens) continue;
      problem.rows.sequences.push_back({sequence.first_row + begin,
                                        std::min(chunk, sequence.num_tokens - begin),
                                        begin == 0 ? sequence.from : sequence.to, sequence.to});
      is_done = false;
    }
    if (!is_done) Run(backend, problem);
  }
}

template <typename Case>
void ExpectTheSameInChunksAndAlone(const MambaBackend& backend, const Case& problem) {
  Case whole = problem;
  Run(backend, whole);
  for (int chunk : {1, 7}) {
    Case found = problem;
    RunInChunks(backend, chunk, found);
    EXPECT_TRUE(SameBits(found.out, whole.out)) << backend.name << ", chunks of " << chunk;
    EXPECT_TRUE(SameBits(found.state, whole.state)) << backend.name << ", chunks of " << chunk;
  }
  Case found = problem;
  for (const StateSequence& sequence : problem.rows.sequences) {
    found.rows.sequences = {sequence};
    Run(backend, found);
  }
  EXPECT_TRUE(SameBits(found.out, whole.out)) << backend.name << ", one after another";
  EXPECT_TRUE(SameBits(found.state, whole.state)) << backend.name << ", one after another";
}

TEST_F(MambaTest, ConvolutionOfAnyWidthMatchesTheReference) {
  for (const MambaBackend& backend : backends_) {
    for (int width = kConvWidthMin; width <= kConvWidthMax; ++width) {
      for (int channels : {1, 8, 37, 130}) {
        ConvCase conv = MakeConv(backend.activations, kRagged, channels, width);
        if (channels == 37) conv.bias.clear();
        ExpectLikeReference(backend, conv, KernelOp::kCausalConv, {0, 0});
      }
    }
  }
}

TEST_F(MambaTest, ConvolutionOfManyChannelsMatchesTheReference) {
  for (const MambaBackend& backend : backends_) {
    ExpectLikeReference(backend, MakeConv(backend.activations, kRagged, 1100, 4),
                        KernelOp::kCausalConv, {0, 0});
  }
}

TEST_F(MambaTest, ConvolutionOfALongPromptMatchesTheReference) {
  for (const MambaBackend& backend : backends_) {
    ExpectLikeReference(backend, MakeConv(backend.activations, {{4200, Start::kInPlace}}, 3, 4),
                        KernelOp::kCausalConv, {0, 0});
  }
}

TEST_F(MambaTest, ConvolutionIsBitwiseIndependentOfChunksAndBatch) {
  for (const MambaBackend& backend : backends_) {
    for (int width : {2, 4, 8}) {
      backend.on_every_schedule([&] {
        ExpectTheSameInChunksAndAlone(backend, MakeConv(backend.activations, kRagged, 150, width));
      });
    }
  }
}

TEST_F(MambaTest, ScanOfAnyNumberOfStatesMatchesTheReference) {
  for (const MambaBackend& backend : backends_) {
    for (int states : {1, 3, 4, 5, 8, 16, 17, 32, 64, 100, 128}) {
      for (int channels : {1, 16, 37, 70}) {
        ScanCase scan = MakeScan(backend.activations, kRagged, channels, states);
        if (channels == 37) scan.z.clear();
        ExpectLikeReference(backend, scan, KernelOp::kSelectiveScan,
                            ToleranceOf(KernelOp::kScanState, backend.activations));
      }
    }
  }
}

TEST_F(MambaTest, ScanIsBitwiseIndependentOfChunksAndBatch) {
  for (const MambaBackend& backend : backends_) {
    for (int states : {5, 16}) {
      backend.on_every_schedule([&] {
        ExpectTheSameInChunksAndAlone(backend, MakeScan(backend.activations, kRagged, 75, states));
      });
    }
  }
}

// A state over many tokens neither drifts from the reference nor depends on its chunks.
TEST_F(MambaTest, ScanOfALongPromptMatchesTheReference) {
  for (const MambaBackend& backend : backends_) {
    const ScanCase scan = MakeScan(backend.activations, {{1500, Start::kFresh}}, 20, 16);
    ExpectLikeReference(backend, scan, KernelOp::kSelectiveScan,
                        ToleranceOf(KernelOp::kScanState, backend.activations));
    ScanCase whole = scan, chunks = scan;
    backend.scan(whole);
    RunInChunks(backend, 111, chunks);
    EXPECT_TRUE(SameBits(chunks.out, whole.out)) << backend.name;
  }
}

// One token whose y is only delta.
TEST_F(MambaTest, StepSizeIsSoftplusOverTheWholeRange) {
  constexpr int kChannels = 16001;
  const float infinity = std::numeric_limits<float>::infinity();
  const float extremes[] = {-infinity, -1e38f,   0.0f,
                            1e38f,     infinity, std::numeric_limits<float>::quiet_NaN()};
  for (const MambaBackend& backend : backends_) {
    ScanCase scan = MakeScan(backend.activations, {{1, Start::kFresh}}, kChannels, 1);
    for (int i = 0; i < kChannels; ++i)
      scan.dt[static_cast<size_t>(kChannels + i)] = -100.0f + 0.01f * static_cast<float>(i);
    std::copy(std::begin(extremes), std::end(extremes), scan.dt.begin() + kChannels + 77);
    scan.dt = Rounded(scan.dt, backend.activations);
    scan.z.clear();
    for (auto* ones : {&scan.x, &scan.bc}) std::fill(ones->begin(), ones->end(), 1.0f);
    for (auto* zeros : {&scan.dt_bias, &scan.skip}) std::fill(zeros->begin(), zeros->end(), 0.0f);
    ScanCase expected = scan;
    RunReference(expected);
    backend.scan(scan);
    EXPECT_TRUE(
        AllClose(scan.out, expected.out, ToleranceOf(KernelOp::kGatedMemory, backend.activations)))
        << backend.name;
    EXPECT_TRUE(
        AllClose(scan.state, expected.state, ToleranceOf(KernelOp::kGatedMemory, DType::kFloat32)))
        << backend.name;
  }
}

// One token without input, with step size 30 and rates from 0 to -4.
TEST_F(MambaTest, DecayOfAStateMatchesTheReferenceOverTheWholeRange) {
  constexpr int kChannels = 12001;
  for (const MambaBackend& backend : backends_) {
    ScanCase scan = MakeScan(backend.activations, {{1, Start::kInPlace}}, kChannels, 1);
    std::fill(scan.dt.begin(), scan.dt.end(), 30.0f);
    std::fill(scan.x.begin(), scan.x.end(), 0.0f);
    std::fill(scan.dt_bias.begin(), scan.dt_bias.end(), 0.0f);
    std::fill(scan.state.begin(), scan.state.end(), 1.0f);
    for (int i = 0; i < kChannels; ++i)
      scan.rates[static_cast<size_t>(i)] = -4.0f * static_cast<float>(i) / (kChannels - 1);
    ScanCase expected = scan;
    RunReference(expected);
    backend.scan(scan);
    EXPECT_TRUE(AllClose(scan.state, expected.state, {5e-7, 0})) << backend.name;
    // Equally accurate for small values: the exponent itself is rounded.
    for (size_t i = 0; i < kChannels; ++i) {
      const double error = std::abs(double{scan.state[i]} - double{expected.state[i]});
      ASSERT_LE(error, expected.state[i] * (6e-7 + 1.5e-7 * 30 * 4 * double(i) / kChannels) + 1e-37)
          << backend.name << " " << i;
    }
  }
}

TEST_F(MambaTest, StepOfSizeZeroKeepsEveryBitOfTheState) {
  for (const MambaBackend& backend : backends_) {
    ScanCase scan = MakeScan(backend.activations, {{9, Start::kInPlace}}, 40, 16);
    std::fill(scan.dt.begin(), scan.dt.end(), -256.0f);
    const std::vector<float> before = scan.state;
    backend.scan(scan);
    EXPECT_TRUE(SameBits(scan.state, before)) << backend.name;
  }
}

TEST_F(MambaTest, GateOfAScanEqualsThatOfAGatedMemory) {
  for (const MambaBackend& backend : backends_) {
    if (backend.activations != DType::kFloat32) continue;  // its memory is rounded first
    ScanCase gated = MakeScan(DType::kFloat32, {{30, Start::kFresh}}, 40, 16);
    ScanCase memory = gated;
    memory.z.clear();
    backend.scan(gated);
    backend.scan(memory);
    constexpr size_t kRow = 40;  // the first row belongs to no sequence
    const std::vector<float> out = backend.gate({.gate = gated.z.data() + gated.z_stride,
                                                 .gate_stride = gated.z_stride,
                                                 .memory = memory.out.data() + kRow,
                                                 .num_tokens = 30,
                                                 .width = 40},
                                                false);
    EXPECT_TRUE(SameBits(out, std::span(gated.out).subspan(kRow, 30 * kRow))) << backend.name;
  }
}

std::vector<float> GateReference(GatedMemoryArgs<float> args) {
  std::vector<float> out(static_cast<size_t>(args.num_tokens) * static_cast<size_t>(args.width));
  args.out = out.data();
  GatedMemoryRef(args);
  return out;
}

TEST_F(MambaTest, GatedMemoryOfAnyWidthMatchesTheReference) {
  constexpr int kTokens = 11;
  for (const MambaBackend& backend : backends_) {
    for (int width : {1, 7, 8, 15, 16, 17, 64, 100, 2047, 2048, 2056}) {
      for (int gap : {0, 3, 8}) {
        const size_t size = kTokens * static_cast<size_t>(width + gap);
        const std::vector<float> gate = RandomOf(backend.activations, size, 1, -20, 20),
                                 memory = RandomOf(backend.activations, size, 2, -3, 3);
        const GatedMemoryArgs<float> args = {.gate = gate.data(),
                                             .gate_stride = width + gap,
                                             .memory = memory.data(),
                                             .num_tokens = kTokens,
                                             .width = width};
        const std::vector<float> out = backend.gate(args, false);
        EXPECT_TRUE(AllClose(out, GateReference(args),
                             ToleranceOf(KernelOp::kGatedMemory, backend.activations)))
            << width << " " << gap << " " << backend.name;
        EXPECT_TRUE(SameBits(backend.gate(args, true), out)) << width << " in place";
        GatedMemoryArgs<float> last = args;
        last.gate += (kTokens - 1) * last.gate_stride;
        last.memory += (kTokens - 1) * width;
        last.num_tokens = 1;
        EXPECT_TRUE(
            SameBits(backend.gate(last, false), std::span(out).last(static_cast<size_t>(width))))
            << width << " alone";
      }
    }
  }
}

TEST_F(MambaTest, GatedMemoryMatchesTheReferenceOverTheWholeRange) {
  constexpr int kWidth = 24001;
  const float infinity = std::numeric_limits<float>::infinity();
  const float extremes[] = {-1e38f, 0.0f, 1e38f, infinity, std::numeric_limits<float>::quiet_NaN()};
  for (const MambaBackend& backend : backends_) {
    std::vector<float> gate(kWidth);
    for (int i = 0; i < kWidth; ++i)
      gate[static_cast<size_t>(i)] = -120.0f + 0.01f * static_cast<float>(i);
    std::copy(std::begin(extremes), std::end(extremes), gate.begin() + 77);
    gate = Rounded(gate, backend.activations);
    const std::vector<float> memory = RandomOf(backend.activations, kWidth, 5, 0.5f, 1.0f);
    const GatedMemoryArgs<float> args = {.gate = gate.data(),
                                         .gate_stride = kWidth,
                                         .memory = memory.data(),
                                         .num_tokens = 1,
                                         .width = kWidth};
    EXPECT_TRUE(AllClose(backend.gate(args, false), GateReference(args),
                         ToleranceOf(KernelOp::kGatedMemory, backend.activations)))
        << backend.name;
  }
}

TEST_F(MambaTest, EmptyBatchIsSkipped) {
  for (const MambaBackend& backend : backends_) {
    ConvCase conv = MakeConv(backend.activations, {{0, Start::kInPlace}}, 8, 4);
    ScanCase scan = MakeScan(backend.activations, {{0, Start::kInPlace}}, 8, 4);
    for (int round = 0; round < 2; ++round) {
      const std::vector<float> conv_state = conv.state, scan_state = scan.state;
      backend.conv(conv);
      backend.scan(scan);
      EXPECT_TRUE(SameBits(conv.state, conv_state)) << backend.name;
      EXPECT_TRUE(SameBits(scan.state, scan_state)) << backend.name;
      conv.rows.sequences.clear();
      scan.rows.sequences.clear();
    }
    EXPECT_TRUE(backend.gate({.gate_stride = 8, .width = 8}, false).empty());
  }
}

TEST(MambaWeightsTest, TapsAndRatesComeFromACheckpointsRows) {
  EXPECT_EQ(ConvTaps(std::vector<float>{1, 2, 3, 4, 5, 6}, 2, 3),
            (std::vector<float>{1, 4, 2, 5, 3, 6}));
  const std::vector<float> logs = {0.0f, 1.0f, -2.0f, 0.5f, 3.0f, -1.0f};
  const std::vector<float> rates = ScanRates(logs, 2, 3);
  for (size_t channel = 0; channel < 2; ++channel) {
    for (size_t n = 0; n < 3; ++n)
      EXPECT_FLOAT_EQ(rates[n * 2 + channel], -std::exp(logs[channel * 3 + n]));
  }
}

}  // namespace
}  // namespace diffserve
