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

// The members without which Codex 0.171 reads no list at all.
TEST(ServedNamesTest, ModelsHaveAllThatCodexNeeds) {
  ServingOptions options;
  options.frontend.served_model_name = "tiny";
  options.frontend.further_model_names = {"second"};
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
