// SPDX-License-Identifier: Apache-2.0
// A server under several names.
#include "server/serving/request/served_names.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "server/api/grpc/kserve/messages.h"
#include "tests/testing/server/http_client.h"
#include "tests/testing/server/serving_fixture.h"

namespace diffserve {
namespace {

using testing::ClientReply;
using testing::HttpClient;
using testing::ServingFixture;
using testing::ServingOptions;
using Json = nlohmann::json;

TEST(ServedNamesTest, EachServedNameWorksAndAnswersHaveTheFirst) {
  ServingOptions options;
  options.frontend.names.name = "first";
  options.frontend.names.further = {"second", "org/third"};
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
  for (const ClientReply& reply :
       {client.Post("/v1/completions", R"({"prompt":"a","model":"fourth"})"),
        client.Post("/tokenize", R"({"prompt":"a","model":"fourth"})"),
        client.Get("/v1/models/fourth")}) {
    EXPECT_EQ(reply.status, 404);
    EXPECT_EQ(reply.json()["error"]["message"],
              "the model 'fourth' is not served here; served: first, second, org/third");
  }
}

TEST(ServedNamesTest, KserveAcceptsEachServedName) {
  FrontendOptions options;
  options.names.name = "first";
  options.names.further = {"second"};
  for (const char* name : {"first", "second"}) EXPECT_TRUE(CheckModelName(name, "", options).ok());
  const Status unknown = CheckModelName("third", "", options);
  EXPECT_EQ(unknown.code(), StatusCode::kNotFound);
  EXPECT_EQ(unknown.message(), "the model 'third' is not served here; served: first, second");
}

TEST(ServedNamesTest, LongListOfNamesIsCut) {
  std::vector<std::string> names;
  for (int i = 0; i < 22; ++i) names.push_back("m" + std::to_string(i));
  const std::string message = UnknownModel(std::string(1000, 'x'), names).message();
  EXPECT_TRUE(message.ends_with(", m19 and 2 more, as /v1/models lists")) << message;
  EXPECT_LT(message.size(), 400u);
}

// The members without which Codex 0.171 reads no list at all.
TEST(ServedNamesTest, ModelsHaveAllThatCodexNeeds) {
  ServingOptions options;
  options.frontend.names.name = "tiny";
  options.frontend.names.further = {"second"};
  ServingFixture server(options);
  HttpClient client(server.port());
  const Json models = client.Get("/v1/models?client_version=0.171.0").json()["models"];
  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(models[0]["slug"], "tiny");
  EXPECT_EQ(models[1]["slug"], "second");
  for (const Json& model : models) {
    EXPECT_EQ(model["context_window"], 512);
    EXPECT_EQ(model["visibility"], "list");
    EXPECT_TRUE(model["base_instructions"].is_string());
    EXPECT_EQ(model["truncation_policy"], Json::parse(R"({"mode":"bytes","limit":10000})"));
    for (const char* name :
         {"display_name", "supported_reasoning_levels", "shell_type", "supported_in_api",
          "priority", "support_verbosity", "experimental_supported_tools",
          "supports_parallel_tool_calls", "supports_reasoning_summaries"}) {
      EXPECT_TRUE(model.contains(name) && !model[name].is_null()) << name;
    }
  }
}

}  // namespace
}  // namespace diffserve
