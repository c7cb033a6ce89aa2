// SPDX-License-Identifier: Apache-2.0
// The price of an answer compared with the memory of its events, and the budgets.
#include "server/serving/answer/answer_price.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/diagnostics/attention_capture.h"
#include "tests/testing/server/http_client.h"
#include "tests/testing/server/serving_fixture.h"

namespace diffserve {
namespace {

using testing::ClientReply;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::HttpClient;
using testing::ServingFixture;
using testing::ServingOptions;

constexpr size_t kContext = 512;
constexpr size_t kNoLimit = ~size_t{0};

// A stream without a limit, and the bytes of its events.
class Measure {
 public:
  Measure() : stream(std::make_shared<ResponseStream>(kNoLimit / 2, nullptr)) {}

  bool Done() {
    while (auto event = stream->TryPop()) {
      bytes += HeldBytes(*event);
      if (std::holds_alternative<ResponseDone>(*event)) return true;
    }
    return false;
  }

  std::shared_ptr<ResponseStream> stream;
  size_t bytes = 0;
};

GenerateRequest Ask(Frontend& frontend, int prompts, int n) {
  GenerateRequest request;
  const std::vector<int32_t> ids(100, 3);
  request.prompts.assign(static_cast<size_t>(prompts), ids);
  request.n = n;
  request.max_tokens = 50;
  request.sampling = frontend.DefaultSampling();
  request.sampling.ignore_eos = true;
  return request;
}

AnswerPrice PriceOf(const GenerateRequest& request) {
  std::vector<PromptSize> sizes;
  for (const Prompt& prompt : request.prompts) sizes.push_back(BoundOf(prompt, request, kContext));
  return diffserve::PriceOf(request, sizes, kContext, kNoLimit);
}

TEST(AnswerPriceTest, CaptureIsPricedAndRefusalNamesTheLayers) {
  ServingFixture server;
  GenerateRequest request = Ask(*server.frontend, 1, 1);
  const size_t without = PriceOf(request).total();
  const DiffSpec spec = {.num_q1_heads = 2, .num_kv_groups = 2, .head_dim = 8, .v_dim = 8};
  const std::vector<KvFormat> layers(3, KvFormat::Of(spec, 16, DType::kFloat32));
  request.capture = std::make_shared<AttentionCapture>(
      AttentionSource{spec, layers}, AttentionCapture::Selection{{0, 2}, {5, 70, 99}});
  request.capture_bytes = request.capture->bytes();
  // Two layers of 7 pages of 2 groups, and 3 rows of q.
  EXPECT_GE(request.capture_bytes, size_t{2 * (7 * 2 * 16 * (8 + 8) + 3 * 16) * 4});
  AnswerPrice price = PriceOf(request);
  EXPECT_EQ(price.total(), without + request.capture_bytes);
  const Status refused = FitAnswer(price, price.total() - 1, request);
  EXPECT_EQ(refused.param(), "layers");
  EXPECT_THAT(refused.message(), HasSubstr("maps of 2 layers and 3 positions over 100 slots"));
}

TEST(AnswerPriceTest, PriceCoversTheEventsWithinASmallFactor) {
  ServingFixture server;
  for (const int prompt_logprobs : {-1, 0, 20}) {
    for (const int logprobs : {-1, 0, 20}) {
      for (const int n : {1, 8}) {
        GenerateRequest request = Ask(*server.frontend, 3, n);
        request.sampling.prompt_logprobs = prompt_logprobs;
        request.sampling.num_logprobs = logprobs;
        const AnswerPrice streamed = PriceOf(request);
        request.holds = AnswerHolds::kTokens;
        const AnswerPrice whole = PriceOf(request);
        Measure client;
        ASSERT_TRUE(server.frontend->Generate(std::move(request), client.stream).ok());
        ASSERT_TRUE(Eventually([&] { return client.Done(); }));
        const std::string name = std::to_string(prompt_logprobs) + " " + std::to_string(logprobs) +
                                 " " + std::to_string(n);
        EXPECT_GE(streamed.total(), client.bytes) << name;
        EXPECT_LE(whole.total(), 4 * client.bytes) << name;
        EXPECT_LE(streamed.output, 4 * client.bytes) << name;
      }
    }
  }
}

TEST(AnswerPriceTest, StreamOutputIsBoundedByItsQueue) {
  ServingFixture server;
  GenerateRequest request = Ask(*server.frontend, 1, 16);
  request.max_tokens = 400;
  request.sampling.num_logprobs = 20;
  const std::vector<PromptSize> sizes = {{100, 0}};
  EXPECT_EQ(diffserve::PriceOf(request, sizes, kContext, 1 << 20).output, size_t{1} << 20);
}

TEST(AnswerPriceTest, UnsetMaxTokensIsLoweredToFitTheBudget) {
  ServingFixture server;
  GenerateRequest request = Ask(*server.frontend, 1, 2);
  request.max_tokens = std::nullopt;
  request.holds = AnswerHolds::kTokens;
  AnswerPrice price = PriceOf(request);
  EXPECT_EQ(price.output, kContext * price.output_per_token);
  const size_t limit = price.prompts + 100 * price.output_per_token + 1;
  EXPECT_TRUE(FitAnswer(price, limit, request).ok());
  EXPECT_EQ(request.max_tokens_default, 100);
  EXPECT_LE(price.total(), limit);
  request.max_tokens = 101;
  price = PriceOf(request);
  const Status refused = FitAnswer(price, limit, request);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.param(), "max_tokens");
}

TEST(AnswerBudgetTest, ReservationsAreExactAndReleased) {
  const AnswerBudget budget(1000);
  auto first = budget.Take(600);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(budget.Take(401), nullptr);
  EXPECT_EQ(budget.taken_bytes(), 600u);
  EXPECT_TRUE(first->Resize(100));
  EXPECT_FALSE(first->Resize(1001));
  EXPECT_EQ(budget.taken_bytes(), 100u);
  const auto second = budget.Take(900);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(budget.Take(1), nullptr);
  first.reset();
  EXPECT_EQ(budget.taken_bytes(), 900u);
}

TEST(AnswerPriceTest, TooLargeAnswerIsRefusedWithItsCause) {
  ServingOptions options;
  options.frontend.max_answer_bytes = 1 << 20;
  ServingFixture server(options);
  HttpClient client(server.port());
  const std::string prompt(400, 'a');
  const std::string three = R"(["x)" + prompt + R"(","y)" + prompt + R"(","z)" + prompt + R"("])";
  const ClientReply reply = client.Post(
      "/v1/completions",
      R"({"prompt":)" + three + R"(,"n":16,"prompt_logprobs":20,"max_tokens":1})");
  EXPECT_EQ(reply.status, 200) << reply.body;
  const ClientReply large = client.Post("/v1/completions",
                                        R"({"prompt":"a","n":16,"logprobs":20,"max_tokens":500})");
  EXPECT_EQ(large.status, 400);
  EXPECT_EQ(large.json()["error"]["param"], "logprobs");
  EXPECT_THAT(large.json()["error"]["message"].get<std::string>(), HasSubstr("1.0 MiB"));
  EXPECT_THAT(large.json()["error"]["message"].get<std::string>(), HasSubstr("n 16"));
  EXPECT_EQ(server.Refused(RefusalReason::kTooLong), 1u);
}

TEST(AnswerPriceTest, AnswersShareABudgetThatIsReleased) {
  ServingOptions options;
  options.hold_steps = true;
  options.frontend.max_answers_bytes = 700 << 10;
  ServingFixture server(options);
  const std::string body =
      R"({"prompt":"hello","n":8,"max_tokens":200,"logprobs":20,"ignore_eos":true})";
  HttpClient first(server.port()), second(server.port());
  first.SendPost("/v1/completions", body);
  ASSERT_TRUE(Eventually([&] { return server.Stats().waiting + server.Stats().running == 8; }));
  ClientReply refused = second.Post("/v1/completions", body);
  EXPECT_EQ(refused.status, 429) << refused.body;
  EXPECT_EQ(refused.fields.count("retry-after"), 1u);
  EXPECT_EQ(server.Refused(RefusalReason::kMemoryFull), 1u);
  server.steps.Open();
  EXPECT_EQ(first.ReadReply().status, 200);
  EXPECT_TRUE(Eventually([&] { return second.Post("/v1/completions", body).status == 200; }))
      << "what was set aside comes back";
}

}  // namespace
}  // namespace diffserve
