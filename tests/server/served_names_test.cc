// SPDX-License-Identifier: Apache-2.0
// A server under several names.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "server/api/grpc/kserve/messages.h"
#include "tests/testing/http_client.h"
#include "tests/testing/serving_fixture.h"

namespace diffserve {
namespace {

using testing::ClientReply;
using testing::HttpClient;
using testing::ServingFixture;
using testing::ServingOptions;
using Json = nlohmann::json;

TEST(ServedNamesTest, EachServedNameWorksAndAnswersHaveTheFirst) {
  ServingOptions options;
  options.frontend.served_model_name = "first";
  options.frontend.further_model_names = {"second", "org/third"};
  ServingFixture server(options);
  HttpClient client(server.port());
  std::vector<std::string> listed;
  const Json models = client.Get("/v1/models").json();
  for (const Json& model : models["data"]) listed.push_back(model["id"]);
  EXPECT_EQ(listed, (std::vector<std::string>{"first", "second", "org/third"}));
  for (const std::string& name : listed) {
    EXPECT_EQ(client.Get("/v1/models/" + name).json()["id"], name);
    for (const auto& [route, body] : std::map<std::string, Json>{
             {"/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}}},
             {"/v1/chat/completions",
              {{"messages", {{{"role", "user"}, {"content", "a"}}}}, {"max_tokens", 1}}},
             {"/v1/messages",
              {{"messages", {{{"role", "user"}, {"content", "a"}}}}, {"max_tokens", 1}}},
             {"/v1/responses", {{"input", "a"}, {"max_output_tokens", 1}}}}) {
      Json named = body;
      named["model"] = name;
      const ClientReply reply = client.Post(route, named.dump());
      EXPECT_EQ(reply.status, 200) << route << reply.body;
      EXPECT_EQ(reply.json()["model"], "first") << route;
    }
    EXPECT_EQ(client.Post("/tokenize", Json{{"prompt", "a"}, {"model", name}}.dump()).status, 200);
  }
  EXPECT_EQ(client.Post("/v1/completions", R"({"prompt":"a","model":"fourth"})").status, 404);
}

TEST(ServedNamesTest, KserveAcceptsEachServedName) {
  FrontendOptions options;
  options.served_model_name = "first";
  options.further_model_names = {"second"};
  for (const char* name : {"first", "second"}) EXPECT_TRUE(CheckModelName(name, "", options).ok());
  EXPECT_EQ(CheckModelName("third", "", options).code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace diffserve
