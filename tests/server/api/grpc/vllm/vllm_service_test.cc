// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "server/api/grpc/vllm/service.h"
#include "tests/testing/server/grpc_stack.h"
#include "vllm/grpc/engine/vllm_engine.grpc.pb.h"

namespace diffserve {
namespace {

namespace vllm_v1 = ::vllm::grpc::engine;
using testing::CallIsCounted;
using testing::CallWithBytes;
using testing::Eventually;
using testing::ExpectedTokens;
using testing::GrpcStack;
using testing::GrpcStackOptions;
using ::testing::HasSubstr;
using vllm_v1::VllmEngine;

constexpr char kService[] = "/vllm.grpc.engine.VllmEngine/";

std::unique_ptr<VllmEngine::Stub> NewVllmStub(const GrpcStack& stack) {
  return VllmEngine::NewStub(stack.NewChannel());
}

vllm_v1::GenerateRequest VllmRequestOf(const std::vector<uint32_t>& ids, uint32_t max_tokens,
                                       bool stream) {
  vllm_v1::GenerateRequest message;
  message.mutable_tokenized()->mutable_input_ids()->Add(ids.begin(), ids.end());
  message.mutable_sampling_params()->set_max_tokens(max_tokens);
  message.mutable_sampling_params()->set_temperature(0);
  message.set_stream(stream);
  return message;
}

struct Answer {
  grpc::Status status;
  std::string param;
  std::vector<vllm_v1::GenerateResponse> messages;

  std::vector<int32_t> TokensOf(uint32_t index) const {
    std::vector<int32_t> ids;
    for (const vllm_v1::GenerateResponse& message : messages) {
      const auto& found = message.has_chunk() ? message.chunk().token_ids()
                                              : message.complete().output_ids();
      const uint32_t of = message.has_chunk() ? message.chunk().index()
                                              : message.complete().index();
      if (of == index) ids.insert(ids.end(), found.begin(), found.end());
    }
    return ids;
  }
};

Answer GenerateVllm(VllmEngine::Stub& stub, const vllm_v1::GenerateRequest& request) {
  Answer answer;
  grpc::ClientContext context;
  const auto reader = stub.Generate(&context, request);
  vllm_v1::GenerateResponse message;
  while (reader->Read(&message)) answer.messages.push_back(message);
  answer.status = reader->Finish();
  answer.param = testing::TrailerOf(context, "param");
  return answer;
}

TEST(VllmServiceTest, WholeAnswerIsOneMessageWithTheStreamsTokens) {
  GrpcStack stack;
  const auto stub = NewVllmStub(stack);
  const Answer whole = GenerateVllm(*stub, VllmRequestOf({5, 6, 7}, 20, false));
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  ASSERT_EQ(whole.messages.size(), 1u);
  const vllm_v1::GenerateComplete& complete = whole.messages[0].complete();
  EXPECT_EQ(whole.TokensOf(0), ExpectedTokens(stack, {5, 6, 7}, 20));
  EXPECT_EQ(complete.finish_reason(), "length");
  EXPECT_EQ(complete.prompt_tokens(), 3u);
  EXPECT_EQ(complete.completion_tokens(), 20u);
  EXPECT_TRUE(CallIsCounted(stack, "VllmEngine.Generate", 0));

  const Answer stream = GenerateVllm(*stub, VllmRequestOf({5, 6, 7}, 20, true));
  ASSERT_TRUE(stream.status.ok()) << stream.status.error_message();
  ASSERT_GT(stream.messages.size(), 2u);
  EXPECT_TRUE(stream.messages.front().has_chunk());
  ASSERT_TRUE(stream.messages.back().has_complete());
  EXPECT_EQ(stream.messages.back().complete().completion_tokens(), 20u);
  EXPECT_EQ(stream.TokensOf(0), whole.TokensOf(0));
  EXPECT_TRUE(stack.EngineIsEmpty());
}

TEST(VllmServiceTest, TextIsTokenizedAndEachOutputHasItsIndex) {
  GrpcStack stack;
  const auto stub = NewVllmStub(stack);
  vllm_v1::GenerateRequest request;
  request.set_text("hello world");
  request.mutable_sampling_params()->set_max_tokens(40);
  request.mutable_sampling_params()->set_seed(5);
  request.mutable_sampling_params()->set_n(2);
  const Answer answer = GenerateVllm(*stub, request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.messages.size(), 2u);
  const auto prompt = static_cast<uint32_t>(stack.tokenizer->Encode("hello world", true)->size());
  for (uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(answer.messages[i].complete().index(), i);
    EXPECT_EQ(answer.messages[i].complete().prompt_tokens(), prompt);
    EXPECT_EQ(answer.TokensOf(i).size(), 40u);
  }
  EXPECT_NE(answer.TokensOf(0), answer.TokensOf(1));
}

TEST(VllmServiceTest, ConstraintHolds) {
  GrpcStackOptions options;
  options.config.eos_token_ids = {1};
  options.executor.vocab_size = testing::kWholeVocab;
  GrpcStack stack(std::move(options));
  vllm_v1::GenerateRequest request = VllmRequestOf({5}, 40, false);
  request.mutable_sampling_params()->mutable_choice()->add_choices("yes, it is");
  const Answer answer = GenerateVllm(*NewVllmStub(stack), request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  const std::vector<int32_t> tokens = answer.TokensOf(0);
  EXPECT_EQ(*stack.tokenizer->Decode(std::vector<int32_t>(tokens.begin(), tokens.end()), true),
            "yes, it is");
  EXPECT_EQ(answer.messages[0].complete().finish_reason(), "stop");
}

TEST(VllmServiceTest, InvalidMembersAreRefusedByName) {
  GrpcStack stack;
  const auto stub = NewVllmStub(stack);
  const auto refused_for = [&](const vllm_v1::GenerateRequest& request, grpc::StatusCode code) {
    const Answer answer = GenerateVllm(*stub, request);
    EXPECT_EQ(answer.status.error_code(), code) << answer.status.error_message();
    EXPECT_TRUE(answer.messages.empty());
    return answer.param;
  };
  vllm_v1::GenerateRequest request = VllmRequestOf({5}, 5, true);
  request.mutable_mm_inputs();
  EXPECT_EQ(refused_for(request, grpc::StatusCode::UNIMPLEMENTED), "mm_inputs");
  EXPECT_EQ(refused_for(VllmRequestOf({}, 5, false), grpc::StatusCode::INVALID_ARGUMENT),
            "tokenized");
  EXPECT_EQ(refused_for(VllmRequestOf({1u << 30}, 5, false), grpc::StatusCode::INVALID_ARGUMENT),
            "tokenized");
  request = VllmRequestOf({}, 5, false);
  request.set_text(std::string(100'000, 'x'));
  EXPECT_EQ(refused_for(request, grpc::StatusCode::INVALID_ARGUMENT), "text");
  EXPECT_EQ(refused_for(VllmRequestOf({5}, 1u << 30, false), grpc::StatusCode::INVALID_ARGUMENT),
            "max_tokens");
  request = VllmRequestOf({5}, 5, false);
  request.mutable_sampling_params()->set_n(17);
  EXPECT_EQ(refused_for(request, grpc::StatusCode::INVALID_ARGUMENT), "n");
  request = VllmRequestOf({5}, 5, false);
  request.set_request_id(std::string(129, 'i'));
  EXPECT_EQ(refused_for(request, grpc::StatusCode::INVALID_ARGUMENT), "request_id");
}

TEST(VllmServiceTest, AbortEndsTheRequestsThatItNames) {
  GrpcStackOptions options;
  options.hold_steps = true;
  GrpcStack stack(std::move(options));
  const auto stub = NewVllmStub(stack);
  vllm_v1::GenerateRequest request = VllmRequestOf({1, 2}, 4000, true);
  request.set_request_id("mine");
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, request);
  stack.steps.Allow(2);
  vllm_v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  vllm_v1::AbortRequest abort;
  abort.add_request_ids("another's");
  abort.add_request_ids("mine");
  vllm_v1::AbortResponse done;
  grpc::ClientContext second;
  ASSERT_TRUE(stub->Abort(&second, abort, &done).ok());
  while (reader->Read(&message)) EXPECT_TRUE(message.has_chunk());
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(stack.BecomesIdle());
}

TEST(VllmServiceTest, EndingTheCallFreesEverything) {
  GrpcStackOptions options;
  options.hold_steps = true;
  GrpcStack stack(std::move(options));
  const auto stub = NewVllmStub(stack);
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, VllmRequestOf({1, 2}, 4000, false));
  EXPECT_TRUE(Eventually([&] { return stack.Stats().waiting + stack.Stats().running == 1; }));
  context.TryCancel();
  vllm_v1::GenerateResponse message;
  EXPECT_FALSE(reader->Read(&message));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(CallIsCounted(stack, "VllmEngine.Generate", 1));
  EXPECT_TRUE(stack.BecomesIdle());
}

TEST(VllmServiceTest, EmbedGivesTheMeanState) {
  GrpcStackOptions options;
  options.config.hidden_size = 8;
  GrpcStack stack(std::move(options));
  const auto channel = stack.NewChannel();
  vllm_v1::EmbedRequest request;
  request.mutable_tokenized()->add_input_ids(5);
  request.mutable_tokenized()->add_input_ids(6);
  grpc::ClientContext first, second, third;
  vllm_v1::EmbedResponse response;
  const grpc::Status status = VllmEngine::NewStub(channel)->Embed(&first, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.prompt_tokens(), 2u);
  EXPECT_EQ(response.embedding_dim(), 8u);
  v1::EmbedRequest own;
  own.add_inputs()->mutable_token_ids()->add_ids(5);
  own.mutable_inputs(0)->mutable_token_ids()->add_ids(6);
  v1::EmbedResponse expected;
  ASSERT_TRUE(v1::Inference::NewStub(channel)->Embed(&second, own, &expected).ok());
  EXPECT_THAT(response.embedding(), ::testing::ElementsAreArray(expected.embeddings(0).values()));
  const grpc::Status refused = VllmEngine::NewStub(channel)->Embed(&third, {}, &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("tokenized"));
}

TEST(VllmServiceTest, MetadataDescribesServerAndModel) {
  GrpcStackOptions options;
  options.grpc.model_root = "/models/fake";
  options.config.bos_token_id = 3;
  options.config.eos_token_ids = {4, 5};
  options.config.default_temperature = 0.5f;
  options.config.default_top_k = 20;
  options.config.default_min_p = 0.25f;
  options.config.default_max_tokens = 2048;
  GrpcStack stack(std::move(options));
  const auto stub = NewVllmStub(stack);
  grpc::ClientContext first, second, third, fourth;
  vllm_v1::GetModelInfoResponse model;
  ASSERT_TRUE(stub->GetModelInfo(&first, {}, &model).ok());
  EXPECT_EQ(model.model_path(), "/models/fake");
  EXPECT_EQ(model.served_model_name(), "fake-model");
  EXPECT_EQ(model.model_type(), "fake");
  EXPECT_TRUE(model.is_generation());
  EXPECT_FALSE(model.supports_vision());
  EXPECT_EQ(model.max_context_length(), 4096u);
  EXPECT_EQ(model.max_req_input_len(), 4096);
  EXPECT_EQ(model.vocab_size(), static_cast<uint32_t>(stack.tokenizer->vocab_size()));
  EXPECT_THAT(model.eos_token_ids(), ::testing::ElementsAre(4, 5));
  EXPECT_EQ(model.bos_token_id(), 3);
  EXPECT_EQ(model.default_sampling_params_json(),
            R"({"temperature":0.5,"min_p":0.25,"top_k":20,"max_tokens":2048})");
  vllm_v1::GetServerInfoResponse server;
  ASSERT_TRUE(stub->GetServerInfo(&second, {}, &server).ok());
  EXPECT_EQ(server.server_type(), "diffserve");
  EXPECT_EQ(server.active_requests(), 0u);
  EXPECT_GT(server.uptime_seconds(), 0);
  vllm_v1::GetLoadsResponse loads;
  ASSERT_TRUE(stub->GetLoads(&third, {}, &loads).ok());
  EXPECT_EQ(loads.loads(0).max_total_num_tokens(), 4096 * 16);
  vllm_v1::HealthCheckResponse health;
  ASSERT_TRUE(stub->HealthCheck(&fourth, {}, &health).ok());
  EXPECT_TRUE(health.healthy());
}

TEST(VllmServiceTest, HealthFollowsTheHealthService) {
  GrpcStack stack;
  const auto stub = NewVllmStub(stack);
  stack.grpc_server->SetServing(false);
  grpc::ClientContext context;
  vllm_v1::HealthCheckResponse health;
  ASSERT_TRUE(stub->HealthCheck(&context, {}, &health).ok());
  EXPECT_FALSE(health.healthy());
  const auto [status, reply] = CallWithBytes(stack.NewChannel(), "/grpc.health.v1.Health/Check",
                                             "\x0a\x1b" + std::string(kVllmServiceName));
  EXPECT_EQ(reply, std::string("\x08\x02")) << status.error_message();
}

TEST(VllmServiceTest, UnsupportedMethodNamesTheAlternative) {
  GrpcStack stack;
  const auto channel = stack.NewChannel();
  const auto [tokenizer, nothing] = CallWithBytes(channel, std::string(kService) + "GetTokenizer",
                                                  "");
  EXPECT_EQ(tokenizer.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(tokenizer.error_message(), HasSubstr("/tokenizer_info"));
  const auto [events, none] = CallWithBytes(channel, std::string(kService) + "SubscribeKvEvents",
                                            "");
  EXPECT_EQ(events.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(events.error_message(), HasSubstr("--kv-events-endpoint"));
}

TEST(VllmServiceTest, AllButTheHealthCheckNeedAKey) {
  GrpcStackOptions options;
  options.keys = "secret-key-0123456789";
  GrpcStack stack(options);
  const auto channel = stack.NewChannel();
  const grpc::Status health =
      CallWithBytes(channel, std::string(kService) + "HealthCheck", "").first;
  EXPECT_TRUE(health.ok()) << health.error_message();
  for (const char* const method : {"Generate", "Embed", "Abort", "GetModelInfo", "GetServerInfo",
                                   "GetLoads", "GetTokenizer", "SubscribeKvEvents"}) {
    EXPECT_EQ(CallWithBytes(channel, std::string(kService) + method, "").first.error_code(),
              grpc::StatusCode::UNAUTHENTICATED)
        << method;
    EXPECT_NE(
        CallWithBytes(channel, std::string(kService) + method, "", options.keys).first.error_code(),
        grpc::StatusCode::UNAUTHENTICATED)
        << method;
  }
}

TEST(VllmServiceTest, InvalidMessageBytesAreRefused) {
  GrpcStack stack;
  const auto channel = stack.NewChannel();
  for (const char* const method : {"Generate", "Embed", "Abort", "GetLoads"}) {
    EXPECT_EQ(CallWithBytes(channel, std::string(kService) + method, std::string(100, '\xff'))
                  .first.error_code(),
              grpc::StatusCode::INVALID_ARGUMENT)
        << method;
  }
}

}  // namespace
}  // namespace diffserve
