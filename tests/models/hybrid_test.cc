// SPDX-License-Identifier: Apache-2.0
// Models with different kinds of layers, on the CPU: the last layers take fewer tokens.
#include <cstdlib>
#include <utility>

#include "tests/testing/models/hybrid_fixture.h"

namespace diffserve {
namespace {

using testing::Part;

class CpuHybridTest : public testing::HybridTest {
 protected:
  KvFormat FormatOf(const Model& model) const override {
    return KvFormat::Of(model.config().attention, kPageSize, model.dtype());
  }

  static constexpr int kPageSize = 64;
};

TEST_F(CpuHybridTest, SkippingLayersOfTokensChangesNoBitOfOtherTokens) {
  ExpectTheBitsAloneOfSomeTokens();
}

// No full-attention layer attends for a sequence without wanted logits: the page before the one
// that its tokens are written to does not exist.
TEST_F(CpuHybridTest, AttentionOfUnwantedTokensIsNotComputed) {
  const std::unique_ptr<Model> model = Load();
  ASSERT_NE(model, nullptr);
  KvCache kv = Cache(*model);
  Step(*model, kv, {{0, 0, 80, {}, {0, 0}}, {1, 0, 20, {}, {1, 1}}});
  const std::vector<Part> parts = {{0, 80, 90, {}, {0, 0}}, {1, 20, 30, {25}, {1, 1}}};
  const int32_t there = std::exchange(pages_[0], 2147480000);
  const auto step_and_exit = [&] {
    Step(*model, kv, parts);
    std::_Exit(0);
  };
  EXPECT_EXIT(step_and_exit(), ::testing::ExitedWithCode(0), "");
  pages_[0] = there;
  ExpectTheBitsAlone(*model, parts, Step(*model, kv, parts));
  const std::vector<Part> rest = {{0, 90, 95, {90, 94}, {0, 0}}};
  ExpectTheBitsAlone(*model, rest, Step(*model, kv, rest));
}

}  // namespace
}  // namespace diffserve
