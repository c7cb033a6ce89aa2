// SPDX-License-Identifier: Apache-2.0
// The replies of POST /v1/embeddings and /pooling: their JSON, in pieces, and the route over HTTP.
#include "server/api/openai/embedding_reply.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "server/json/base64.h"
#include "tests/testing/server/http_client.h"
#include "tests/testing/server/serving_fixture.h"

namespace diffserve {
namespace {

using Json = nlohmann::json;
using PoolKind = HiddenStatePool::Kind;
using testing::ClientReply;
using testing::HttpClient;
using testing::ServingFixture;
using testing::ServingOptions;

std::string Base64(std::string_view bytes) {
  std::string text;
  AppendBase64(bytes, &text);
  return text;
}

std::string Base64(std::span<const float> numbers) {
  return Base64({reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes()});
}

std::shared_ptr<HiddenStatePool> Filled(int dimensions, int seed) {
  auto pool = std::make_shared<HiddenStatePool>(PoolKind::kLast, dimensions, dimensions);
  pool->Reserve(1);
  std::vector<float> state;
  for (int i = 0; i < dimensions; ++i)
    state.push_back(static_cast<float>((i * 37 + seed * 11) % 101 - 50) / 7.0f);
  pool->OnStates(0, 1, state);
  return pool;
}

// The whole body, written `enough` at a time.
std::string BodyOf(const std::vector<std::shared_ptr<HiddenStatePool>>& pools, bool base64,
                   size_t enough) {
  ResponseEncoder reply(
      std::make_unique<EmbeddingReply>(pools, EmbeddingReply::Form{base64, "tiny"}));
  for (const auto& pool : pools) {
    reply.Take(ResponseDelta{});
    EXPECT_FALSE(reply.answer().done) << pool->status().message();
  }
  reply.Take(ResponseDone{Status(), {.prompt_tokens = 9, .cached_tokens = 4}});
  EXPECT_TRUE(reply.answer().done && !reply.answer().started);
  std::string body;
  for (bool whole = false; !whole;) {
    std::string piece;
    whole = reply.Write(enough, &piece);
    EXPECT_LT(piece.size(), enough + 10'000);
    body += piece;
  }
  return body;
}

TEST(Base64Test, Base64MatchesTheRfc) {
  EXPECT_EQ(Base64(std::string_view()), "");
  EXPECT_EQ(Base64(std::string_view("f")), "Zg==");
  EXPECT_EQ(Base64(std::string_view("fo")), "Zm8=");
  EXPECT_EQ(Base64(std::string_view("foo")), "Zm9v");
  EXPECT_EQ(Base64(std::string_view("foob")), "Zm9vYg==");
  EXPECT_EQ(Base64(std::string_view("\xff\xfe\xfd")), "//79");
}

TEST(EmbeddingReplyTest, HasOpenAisMembers) {
  const Json json = Json::parse(BodyOf({Filled(3, 1), Filled(3, 2)}, false, 1 << 16));
  EXPECT_EQ(json["object"], "list");
  EXPECT_EQ(json["model"], "tiny");
  EXPECT_EQ(json["usage"]["prompt_tokens"], 9);
  EXPECT_EQ(json["usage"]["total_tokens"], 9);
  EXPECT_EQ(json["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
  ASSERT_EQ(json["data"].size(), 2u);
  for (int i : {0, 1}) {
    EXPECT_EQ(json["data"][i]["object"], "embedding");
    EXPECT_EQ(json["data"][i]["index"], i);
  }
}

TEST(EmbeddingReplyTest, NumbersAndBase64AreBitwiseTheVector) {
  for (const int dimensions : {1, 3, 1536, 4000}) {
    const auto pool = Filled(dimensions, 1);
    for (const size_t enough : {size_t{1}, size_t{1} << 16}) {
      const Json numbers = Json::parse(BodyOf({pool}, false, enough))["data"][0]["embedding"];
      ASSERT_EQ(numbers.size(), pool->values().size());
      for (size_t i = 0; i < numbers.size(); ++i)
        EXPECT_EQ(numbers[i].get<float>(), pool->values()[i]);
      EXPECT_EQ(Json::parse(BodyOf({pool}, true, enough))["data"][0]["embedding"],
                Base64(pool->values()));
    }
  }
}

TEST(EmbeddingReplyTest, PoolingHasVllmsMembersAndTheStateOfEachToken) {
  for (const auto kind : {PoolKind::kEach, PoolKind::kEachAtUnitLength}) {
    const auto pool = std::make_shared<HiddenStatePool>(kind, 2, 2);
    pool->Reserve(3);
    pool->OnStates(0, 3, std::vector<float>{3, 4, 0, 2});
    pool->OnStates(2, 3, std::vector<float>{-1, 0});
    for (const bool base64 : {false, true}) {
      ResponseEncoder reply(std::make_unique<EmbeddingReply>(
          std::vector{pool}, EmbeddingReply::Form{base64, "tiny", "pool-1", 7}));
      reply.Take(ResponseDone{Status(), {.prompt_tokens = 3}});
      std::string body;
      EXPECT_TRUE(reply.Write(1 << 16, &body));
      const Json json = Json::parse(body);
      EXPECT_EQ(json["id"], "pool-1");
      EXPECT_EQ(json["object"], "list");
      EXPECT_EQ(json["created"], 7);
      EXPECT_EQ(json["data"][0]["object"], "pooling");
      const Json expected = kind == PoolKind::kEach ? Json{{3, 4}, {0, 2}, {-1, 0}}
                                                    : Json{{0.6f, 0.8f}, {0, 1}, {-1, 0}};
      const Json found = json["data"][0]["data"];
      if (base64) {
        EXPECT_EQ(found, Base64(pool->values()));
      } else {
        EXPECT_EQ(found.get<std::vector<std::vector<float>>>(),
                  expected.get<std::vector<std::vector<float>>>());
      }
    }
  }
}

TEST(EmbeddingReplyTest, ErrorHasNoBody) {
  const std::vector pools = {std::make_shared<HiddenStatePool>(PoolKind::kMean, 4, 4)};
  ResponseEncoder reply(
      std::make_unique<EmbeddingReply>(pools, EmbeddingReply::Form{false, "tiny"}));
  reply.Take(ResponseDone{Status(StatusCode::kDeadlineExceeded, "late"), {}});
  EXPECT_TRUE(reply.answer().done && reply.written());
  EXPECT_EQ(reply.answer().status.code(), StatusCode::kDeadlineExceeded);
}

class EmbeddingRouteTest : public ::testing::Test {
 protected:
  static ServingOptions Options() {
    ServingOptions options;
    options.config.hidden_size = 12;
    return options;
  }
  static Json EmbeddingOf(HttpClient& client, const std::string& body) {
    const ClientReply reply = client.Post("/v1/embeddings", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.json()["data"];
  }
};

TEST_F(EmbeddingRouteTest, BatchedInputsEqualSeparateRequests) {
  ServingFixture server(Options());
  HttpClient client(server.port());
  for (const std::string more : {R"(,"pooling":"mean"})", R"(,"pooling":"last","dimensions":5})"}) {
    const Json together = EmbeddingOf(client, R"({"input":["hello","a b c","hello"])" + more);
    ASSERT_EQ(together.size(), 3u);
    EXPECT_EQ(together[0]["embedding"], together[2]["embedding"]);
    EXPECT_NE(together[0]["embedding"], together[1]["embedding"]);
    const Json alone = EmbeddingOf(client, R"({"input":"a b c")" + more);
    EXPECT_EQ(alone[0]["embedding"], together[1]["embedding"]);
  }
  EXPECT_TRUE(server.EngineIsEmpty());
}

TEST_F(EmbeddingRouteTest, FrontendRefusalNamesTheInput) {
  ServingFixture server(Options());
  HttpClient client(server.port());
  const auto refused = [&client](const std::string& body) {
    const ClientReply reply = client.Post("/v1/embeddings", body);
    EXPECT_EQ(reply.status, 400) << reply.body;
    return reply.json()["error"]["param"];
  };
  EXPECT_EQ(refused(R"({"input":[100000000]})"), "input");
  EXPECT_EQ(refused(R"({"input":[[1],[]]})"), "input");
  EXPECT_EQ(refused(R"({"input":"","add_special_tokens":false})"), "input");
  EXPECT_EQ(refused(Json{{"input", std::string(100'000, 'x')}}.dump()), "input");
  EXPECT_EQ(refused(R"({"input":"a","dimensions":13})"), "dimensions");
  EXPECT_EQ(client.Post("/v1/embeddings", R"({"input":"a","model":"other"})").status, 404);
  EXPECT_TRUE(server.EngineIsEmpty());
}

TEST_F(EmbeddingRouteTest, VectorsArePartOfThePrice) {
  ServingOptions options = Options();
  options.config.hidden_size = 1 << 20;
  options.frontend.max_answer_bytes = 16 << 20;
  ServingFixture server(options);
  HttpClient client(server.port());
  const ClientReply reply = client.Post("/v1/embeddings", R"({"input":["a","b"]})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json()["error"]["param"], "input");
  EXPECT_EQ(client.Post("/v1/embeddings", R"({"input":["a","b"],"dimensions":9})").status, 200);
}

TEST_F(EmbeddingRouteTest, DisconnectedClientEndsTheRequest) {
  ServingOptions options = Options();
  options.hold_steps = true;
  ServingFixture server(options);
  {
    HttpClient client(server.port());
    client.SendPost("/v1/embeddings", R"({"input":["hello","there"]})");
    EXPECT_TRUE(testing::Eventually([&] {
      const EngineStats stats = server.Stats();
      return stats.running + stats.waiting > 0;
    }));
  }
  EXPECT_TRUE(server.BecomesIdle());
}

}  // namespace
}  // namespace diffserve
