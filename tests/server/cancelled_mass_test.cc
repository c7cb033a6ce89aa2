// SPDX-License-Identifier: Apache-2.0
// Which requests are sampled for cancelled mass, and the samples of requests that end early.
#include "server/serving/cancelled_mass.h"

#include <gtest/gtest.h>

#include <optional>

namespace diffserve {
namespace {

constexpr int kLayers = 2, kHeads = 4;

std::shared_ptr<const AttentionSource> MakeSource(int num_maps) {
  const DiffSpec spec = {.num_q1_heads = kHeads,
                         .num_q2_heads = num_maps == 2 ? kHeads : 0,
                         .num_kv_groups = 2,
                         .k_maps = num_maps,
                         .head_dim = 8,
                         .v_dim = 16,
                         .lambda_kind = LambdaKind::kPerLayer};
  const std::vector<KvFormat> layers(kLayers, KvFormat::Of(spec, 16, DType::kFloat32));
  return std::make_shared<AttentionSource>(spec, layers);
}

class CancelledMassTest : public ::testing::Test {
 protected:
  std::unique_ptr<CancelledMass> Make(int every, int num_maps = 2, int64_t max_numbers = 1 << 20,
                                      size_t max_bytes = 1 << 20) {
    return std::make_unique<CancelledMass>(
        CancelledMass::Options{.source = MakeSource(num_maps),
                               .every = every,
                               .max_numbers = max_numbers,
                               .max_bytes = max_bytes,
                               .queue = [this](size_t, std::function<void(bool)> work) {
                                 queued_.push_back(std::move(work));
                               }});
  }
  TokenizedRequest Sampled(CancelledMass& mass, size_t prompt_tokens = 20) {
    TokenizedRequest request;
    request.continuations.emplace_back().prompt = std::vector<int32_t>(prompt_tokens, 1);
    mass.Sample(request);
    return request;
  }
  static bool HasCapture(const TokenizedRequest& request) {
    return !request.continuations.front().observers.empty();
  }
  // As the step that computes the last prompt token does.
  static void Complete(const TokenizedRequest& request) {
    request.continuations.front().observers.front()->OnEnd(20);
  }
  static uint64_t CountOf(const ShareHistogram& histogram) {
    uint64_t count = 0;
    for (uint64_t of_bound : histogram.counts) count += of_bound;
    return count;
  }

  std::vector<std::function<void(bool)>> queued_;
};

TEST_F(CancelledMassTest, FirstOfEveryThreeRequestsIsSampledAtItsLastPromptToken) {
  const auto mass = Make(3);
  for (int i = 0; i < 7; ++i) {
    const TokenizedRequest request = Sampled(*mass);
    EXPECT_EQ(HasCapture(request), i % 3 == 0) << i;
    EXPECT_EQ(static_cast<bool>(request.on_end), i % 3 == 0) << i;
    EXPECT_EQ(request.continuations.front().observed_from,
              i % 3 == 0 ? 19 : std::numeric_limits<int>::max())
        << i;
  }
}

TEST_F(CancelledMassTest, OneMapModelOrZeroRateTakesNoSamples) {
  const auto off = Make(0), plain = Make(1, 1);
  for (CancelledMass* mass : {off.get(), plain.get()}) {
    EXPECT_FALSE(HasCapture(Sampled(*mass)));
    EXPECT_TRUE(mass->layers().empty());
  }
}

TEST_F(CancelledMassTest, PromptWithTooLargeMapsIsNotSampled) {
  const auto mass = Make(1, 2, 2 * kLayers * kHeads * 20);
  EXPECT_TRUE(HasCapture(Sampled(*mass, 20)));
  EXPECT_FALSE(HasCapture(Sampled(*mass, 21)));
}

TEST_F(CancelledMassTest, SampleMemoryIsHeldUntilTheShareIsComputed) {
  const auto capture = std::dynamic_pointer_cast<AttentionCapture>(
      Sampled(*Make(1)).continuations.front().observers.front());
  const size_t bytes = capture->bytes() + capture->working_bytes();
  EXPECT_FALSE(HasCapture(Sampled(*Make(1, 2, 1 << 20, bytes - 1))));
  const auto mass = Make(1, 2, 1 << 20, bytes);
  {
    const TokenizedRequest request = Sampled(*mass);
    ASSERT_TRUE(HasCapture(request));
    EXPECT_FALSE(HasCapture(Sampled(*mass)));
    Complete(request);
    request.on_end();
  }
  EXPECT_FALSE(HasCapture(Sampled(*mass)));
  ASSERT_EQ(queued_.size(), 1u);
  queued_.front()(true);
  queued_.clear();
  EXPECT_TRUE(HasCapture(Sampled(*mass)));
  ASSERT_EQ(mass->layers().size(), static_cast<size_t>(kLayers));
  for (const ShareHistogram& layer : mass->layers()) EXPECT_EQ(CountOf(layer), 1u);
}

TEST_F(CancelledMassTest, PromptThatWasNotComputedGivesNoSample) {
  const auto mass = Make(1);
  Sampled(*mass).on_end();
  EXPECT_TRUE(queued_.empty());
}

TEST_F(CancelledMassTest, ResponseThatEndsAfterTheFrontendQueuesNothing) {
  std::optional<TokenizedRequest> request;
  {
    const auto mass = Make(1);
    request = Sampled(*mass);
    mass->Close();
  }
  Complete(*request);
  request->on_end();
  EXPECT_TRUE(queued_.empty());
}

}  // namespace
}  // namespace diffserve
