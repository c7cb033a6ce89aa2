// SPDX-License-Identifier: Apache-2.0
// A model's process serves only its parent, and knows each client by the name that it says.
#include "server/api/head/parent_secret.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "tests/testing/server/grpc_stack.h"
#include "tests/testing/server/http_client.h"

namespace diffserve {
namespace {

using testing::ClientReply;
using testing::Eventually;
using testing::ExampleOf;
using testing::Finish;
using testing::Generate;
using testing::GrpcStack;
using testing::GrpcStackOptions;
using testing::HttpClient;
using testing::RequestOf;
using testing::ServingFixture;
using testing::ServingOptions;

const std::string kSecret(64, '7');

GrpcStackOptions WithParent() {
  GrpcStackOptions options;
  options.routes.parent_secret = options.grpc.parent_secret = kSecret;
  return options;
}

std::string FieldOf(const std::string& client, const std::string& secret = kSecret) {
  return std::string(kClientField) + ": " + ClientFieldValue(secret, client) + "\r\n";
}

TEST(ParentSecretTest, EachIsRandom) {
  const std::string one = NewParentSecret(), other = NewParentSecret();
  EXPECT_TRUE(IsParentSecret(one) && IsParentSecret(other));
  EXPECT_NE(one, other);
  for (const std::string& wrong : {std::string(), std::string(63, 'a'), std::string(65, 'a'),
                                   std::string(64, 'A'), std::string(63, 'a') + "\n"})
    EXPECT_FALSE(IsParentSecret(wrong)) << wrong;
}

TEST(ParentSecretTest, FieldNamesAClientOnlyWithTheSecret) {
  for (const char* client : {"10.0.0.1", "::1", "key:3", "unix", ""})
    EXPECT_EQ(ClientInField(ClientFieldValue(kSecret, client), kSecret), client);
  const std::string other = std::string(63, '7') + "8";
  for (const std::string& value : {ClientFieldValue(other, "a"), kSecret, kSecret + "a",
                                   std::string(":a"), kSecret.substr(1) + ":a", std::string()})
    EXPECT_FALSE(ClientInField(value, kSecret)) << value;
  EXPECT_FALSE(ClientInField(":a", "")) << "no secret is no key";
}

TEST(ParentSecretTest, NoPathIsServedWithoutIt) {
  GrpcStack server(WithParent());
  const std::string forged[] = {"", FieldOf("a", std::string(64, '8')), FieldOf("a") + FieldOf("b"),
                                FieldOf("a") + FieldOf("a")};
  for (const auto& route : server.Routes()) {
    for (const std::string& fields : forged) {
      HttpClient client(server.port());
      client.Send(std::string(route.method) + " " + ExampleOf(route.path) +
                  " HTTP/1.1\r\nHost: localhost\r\n" + fields + "\r\n");
      EXPECT_EQ(client.ReadReply().status, 403) << route.path << " " << fields;
    }
  }
  HttpClient client(server.port());
  EXPECT_EQ(client.Get("/version", FieldOf("a")).status, 200);
  client.Send("OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(client.ReadReply().status, 403);
}

TEST(ParentSecretTest, StoredResponsesBelongToTheNamedClient) {
  ServingOptions options;
  options.routes.parent_secret = kSecret;
  ServingFixture server(options);
  HttpClient client(server.port());
  const ClientReply made = client.Post(
      "/v1/responses", R"({"input": "hi", "max_output_tokens": 2})", FieldOf("alice"));
  ASSERT_EQ(made.status, 200) << made.body;
  const std::string path = "/v1/responses/" + made.json()["id"].get<std::string>();
  EXPECT_EQ(client.Get(path, FieldOf("bob")).status, 404);
  EXPECT_EQ(client.Get(path, FieldOf("alice")).status, 200);
}

// The key, the host and the origin are the parent's to check.
TEST(ParentSecretTest, ParentHasCheckedTheRest) {
  GrpcStackOptions options = WithParent();
  options.routes.loopback_hosts_only = true;
  GrpcStack server(options);
  HttpClient client(server.port());
  client.Send(
      "POST /reset_prefix_cache HTTP/1.1\r\nHost: a.example\r\nOrigin: https://b.example\r\n" +
      FieldOf("a") + "Content-Length: 0\r\n\r\n");
  EXPECT_EQ(client.ReadReply().status, 200);
}

TEST(ParentSecretTest, OpenCallsAreSharedBetweenTheNamedClients) {
  GrpcStackOptions options = WithParent();
  options.grpc.max_open_calls = 4;
  options.hold_steps = true;
  GrpcStack stack(options);
  const auto stub = stack.NewStub();
  grpc::ClientContext contexts[3];
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>> held;
  for (grpc::ClientContext& context : contexts) {
    context.AddMetadata(kClientField, ClientFieldValue(kSecret, "alice"));
    held.push_back(stub->Generate(&context, RequestOf({1}, 5)));
  }
  EXPECT_TRUE(Eventually([&] { return stack.Stats().waiting + stack.Stats().running == 3; }));
  grpc::ClientContext fourth, bobs;
  fourth.AddMetadata(kClientField, ClientFieldValue(kSecret, "alice"));
  bobs.AddMetadata(kClientField, ClientFieldValue(kSecret, "bob"));
  EXPECT_EQ(Finish(fourth, *stub->Generate(&fourth, RequestOf({1}, 5))).status.error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  const auto of_bob = stub->Generate(&bobs, RequestOf({1}, 5));
  EXPECT_TRUE(Eventually([&] { return stack.Stats().waiting + stack.Stats().running == 4; }));
  stack.steps.Open();
  EXPECT_TRUE(Finish(bobs, *of_bob).status.ok());
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(Finish(contexts[i], *held[i]).status.ok());
}

TEST(ParentSecretTest, ResetCallsOfOneClientDoNotEndTheParentsConnection) {
  GrpcStackOptions options = WithParent();
  options.grpc.max_streams_per_connection = 4;
  GrpcStack stack(options);
  const auto stub = stack.NewStub();
  // The text thread waits for the test, so the server keeps calls that their client has reset.
  std::promise<void> text_work;
  EXPECT_TRUE(
      stack.frontend
          ->Tokenize("another", "text", {.add_special_tokens = false},
                     [begun = text_work.get_future().share()](const auto&) { begun.wait(); })
          .ok());
  v1::TokenizeRequest request;
  request.set_text("text");
  for (int reset = 1; reset <= 20; ++reset) {
    grpc::ClientContext context;
    context.AddMetadata(kClientField, ClientFieldValue(kSecret, "alice"));
    v1::TokenizeResponse response;
    std::promise<grpc::Status> ended;
    stub->async()->Tokenize(&context, &request, &response,
                            [&ended](const grpc::Status& status) { ended.set_value(status); });
    const std::string begun = "diffserve_grpc_calls_total{stage=\"begun\"} " +
                              std::to_string(reset);
    EXPECT_TRUE(Eventually(
        [&] { return stack.metrics->Render().find(begun + "\n") != std::string::npos; }));
    context.TryCancel();
    ended.get_future().get();
  }
  grpc::ClientContext context;
  context.AddMetadata(kClientField, ClientFieldValue(kSecret, "bob"));
  v1::GetModelResponse model;
  EXPECT_TRUE(stub->GetModel(&context, {}, &model).ok());
  text_work.set_value();
}

}  // namespace
}  // namespace diffserve
