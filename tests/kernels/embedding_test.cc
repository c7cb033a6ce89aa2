// SPDX-License-Identifier: Apache-2.0
// Embedding lookup on every backend and in every weight format: exactly the reference's rows.
#include "kernels/ops/embedding.h"

#include <gtest/gtest.h>

#include "kernels/ops/weight_codec.h"
#include "tests/testing/kernels/op_backends.h"
#include "tests/testing/kernels/stored_values.h"

namespace diffserve {
namespace {

using testing::RandomFloats;
using testing::SameBits;
using testing::StoredTensor;

class EmbeddingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (backends_.empty()) GTEST_SKIP() << "there is no device";
  }

  // The rows that the tokens name, on every backend, from a table that every format holds exactly.
  void ExpectRows(int width, const std::vector<int32_t>& tokens,
                  const std::vector<int32_t>& drawn = {}, int drawn_stride = 1) {
    constexpr int kVocab = 11;
    const std::vector<float> values = testing::Rounded(
        RandomFloats(static_cast<size_t>(kVocab * width), 13), DType::kBFloat16);
    std::vector<float> expected(tokens.size() * static_cast<size_t>(width));
    EmbeddingLookupArgs args = {.tokens = tokens.data(),
                                .out = expected.data(),
                                .num_tokens = static_cast<int>(tokens.size()),
                                .drawn = drawn.data(),
                                .drawn_stride = drawn_stride};
    for (DType stored : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      const StoredTensor table(values, {kVocab, width}, stored);
      EmbeddingLookupRef(table.view(), args);
      for (const testing::EmbeddingBackend& backend : backends_) {
        EXPECT_TRUE(SameBits(backend.run(table.view(), args, drawn), expected))
            << width << " " << NameOf(stored) << " " << backend.name;
      }
    }
  }

  const std::vector<testing::EmbeddingBackend> backends_ = testing::EmbeddingBackends();
};

TEST_F(EmbeddingTest, RowsAreCopiedExactlyAtAnyWidth) {
  for (int width : {3, 8, 520, 2056}) ExpectRows(width, {10, 0, 3, 3});
  ExpectRows(5, std::vector<int32_t>(40, 7));
  ExpectRows(8, {});
}

TEST_F(EmbeddingTest, NegativeTokenMeansAnEarlierStepsDraw) {
  ExpectRows(8, {-1, 4, -3}, {9, 2, 5});
  ExpectRows(8, {-2, -1, 0}, {9, 100, 100, 7, 100, 100}, 3);
}

TEST_F(EmbeddingTest, WiderTableIsRoundedToTheFormat) {
  const std::vector<float> values = RandomFloats(2 * 24, 14);
  const StoredTensor table(values, {2, 24});
  const int32_t tokens[] = {0, 1};
  for (const testing::EmbeddingBackend& backend : backends_) {
    EXPECT_TRUE(SameBits(backend.run(table.view(), {.tokens = tokens, .num_tokens = 2}, {}),
                         testing::Rounded(values, DTypeOf(backend.format))))
        << backend.name;
  }
}

}  // namespace
}  // namespace diffserve
