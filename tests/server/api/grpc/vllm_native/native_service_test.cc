// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "server/api/grpc/vllm_native/service.h"
#include "tests/testing/server/grpc_stack.h"
#include "vllm/control.grpc.pb.h"
#include "vllm/inference.grpc.pb.h"

namespace diffserve {
namespace {

namespace native_v1 = ::vllm;
using native_v1::Control;
using native_v1::Inference;
using testing::CallIsCounted;
using testing::CallWithBytes;
using testing::Eventually;
using testing::ExpectedTokens;
using testing::GrpcStack;
using testing::GrpcStackOptions;
using ::testing::HasSubstr;
using ::testing::StartsWith;

native_v1::GenerateRequest NativeRequestOf(const std::vector<uint32_t>& ids, uint32_t max_tokens) {
  native_v1::GenerateRequest message;
  message.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  message.mutable_stopping()->set_max_new_tokens(max_tokens);
  message.mutable_response()->set_output_token_ids(true);
  return message;
}

std::unique_ptr<Inference::Stub> NewInference(const GrpcStack& stack) {
  return Inference::NewStub(stack.NewChannel());
}
std::unique_ptr<Control::Stub> NewControl(const GrpcStack& stack) {
  return Control::NewStub(stack.NewChannel());
}

// All that came of one GenerateStream call.
struct NativeStreamed {
  grpc::Status status;
  std::string param, text;
  std::vector<int32_t> tokens;
  std::vector<native_v1::GenerateResponse> messages;
};

NativeStreamed StreamNative(Inference::Stub& stub, const native_v1::GenerateRequest& request) {
  NativeStreamed answer;
  grpc::ClientContext context;
  const auto reader = stub.GenerateStream(&context, request);
  native_v1::GenerateResponse message;
  while (reader->Read(&message)) {
    answer.messages.push_back(message);
    answer.text += message.outputs().text();
    const auto& ids = message.outputs().token_ids();
    answer.tokens.insert(answer.tokens.end(), ids.begin(), ids.end());
  }
  answer.status = reader->Finish();
  answer.param = testing::TrailerOf(context, "param");
  return answer;
}

TEST(NativeServiceTest, StreamAndWholeAnswerAreTheEnginesTokensAndText) {
  GrpcStack stack;
  const auto stub = NewInference(stack);
  const native_v1::GenerateRequest request = NativeRequestOf({5, 6, 7}, 20);
  const NativeStreamed stream = StreamNative(*stub, request);
  ASSERT_TRUE(stream.status.ok()) << stream.status.error_message();
  const std::vector<int32_t> expected = ExpectedTokens(stack, {5, 6, 7}, 20);
  EXPECT_EQ(stream.tokens, expected) << "greedy unless the request or the model says otherwise";
  EXPECT_EQ(stream.text, *stack.tokenizer->Decode(expected, true));
  ASSERT_GT(stream.messages.size(), 2u);
  EXPECT_EQ(stream.messages.front().prompt_info().num_prompt_tokens(), 3u);
  const native_v1::FinishInfo& finish = stream.messages.back().outputs().finish_info();
  EXPECT_EQ(finish.num_output_tokens(), 20u);
  EXPECT_EQ(finish.finish_reason(), native_v1::FinishInfo::LENGTH);
  EXPECT_TRUE(CallIsCounted(stack, "vllm.Inference.GenerateStream", 0));

  grpc::ClientContext context;
  native_v1::GenerateResponse whole;
  const grpc::Status status = stub->Generate(&context, request, &whole);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(whole.outputs().text(), stream.text);
  EXPECT_THAT(whole.outputs().token_ids(), ::testing::ElementsAreArray(expected));
  EXPECT_EQ(whole.outputs().finish_info().num_output_tokens(), 20u);
  EXPECT_EQ(whole.prompt_info().num_prompt_tokens(), 3u);
  EXPECT_TRUE(CallIsCounted(stack, "vllm.Inference.Generate", 0));
  EXPECT_TRUE(stack.EngineIsEmpty());
}

TEST(NativeServiceTest, ModelsTemperatureCountsWhereTheRequestHasNone) {
  GrpcStackOptions options;
  options.config.default_temperature = 1;
  GrpcStack stack(std::move(options));
  const auto stub = NewInference(stack);
  native_v1::GenerateRequest request = NativeRequestOf({5, 6, 7}, 40);
  request.mutable_sampling()->set_seed(7);
  const std::vector<int32_t> drawn = StreamNative(*stub, request).tokens;
  EXPECT_NE(drawn, ExpectedTokens(stack, {5, 6, 7}, 40));
  request.set_temperature(0);
  EXPECT_EQ(StreamNative(*stub, request).tokens, ExpectedTokens(stack, {5, 6, 7}, 40));
}

TEST(NativeServiceTest, InvalidFieldsAreRefusedByName) {
  GrpcStack stack;
  const auto stub = NewInference(stack);
  const auto refused_for = [&](const native_v1::GenerateRequest& request, grpc::StatusCode code) {
    const NativeStreamed answer = StreamNative(*stub, request);
    EXPECT_EQ(answer.status.error_code(), code) << answer.status.error_message();
    EXPECT_TRUE(answer.messages.empty());
    return answer.param;
  };
  const auto invalid = grpc::StatusCode::INVALID_ARGUMENT;
  native_v1::GenerateRequest request = NativeRequestOf({5}, 5);
  request.set_model("another");
  EXPECT_EQ(refused_for(request, grpc::StatusCode::NOT_FOUND), "model");
  request = NativeRequestOf({5}, 5);
  request.mutable_sampling()->set_top_p(2);
  EXPECT_EQ(refused_for(request, invalid), "top_p");
  EXPECT_EQ(refused_for(NativeRequestOf({}, 5), invalid), "token_ids");
  EXPECT_EQ(refused_for(NativeRequestOf({5}, 1u << 30), invalid), "max_new_tokens");
  request = NativeRequestOf({5}, 5);
  request.mutable_sampling()->set_num_sequences(17);
  EXPECT_EQ(refused_for(request, invalid), "num_sequences");
  request = NativeRequestOf({5}, 5);
  request.add_media();
  EXPECT_EQ(refused_for(request, invalid), "media");
  grpc::ClientContext context;
  native_v1::GenerateResponse whole;
  const grpc::Status status = stub->Generate(&context, request, &whole);
  EXPECT_EQ(status.error_code(), invalid);
  EXPECT_THAT(status.error_message(), HasSubstr("media is set; allowed:"));
}

TEST(NativeServiceTest, AbortEndsTheRequestsThatItNames) {
  GrpcStackOptions options;
  options.hold_steps = true;
  GrpcStack stack(std::move(options));
  native_v1::GenerateRequest request = NativeRequestOf({1, 2}, 4000);
  request.set_request_id("mine");
  grpc::ClientContext context;
  const auto reader = NewInference(stack)->GenerateStream(&context, request);
  stack.steps.Allow(2);
  native_v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  native_v1::AbortRequest abort;
  abort.add_request_ids("another's");
  abort.add_request_ids("mine");
  native_v1::AbortResponse done;
  grpc::ClientContext second;
  ASSERT_TRUE(NewControl(stack)->Abort(&second, abort, &done).ok());
  while (reader->Read(&message)) EXPECT_FALSE(message.outputs().has_finish_info());
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(stack.BecomesIdle());
}

TEST(NativeServiceTest, EndingTheCallFreesEverything) {
  GrpcStackOptions options;
  options.hold_steps = true;
  GrpcStack stack(std::move(options));
  const auto stub = NewInference(stack);
  grpc::ClientContext context;
  const auto reader = stub->GenerateStream(&context, NativeRequestOf({1, 2}, 4000));
  EXPECT_TRUE(Eventually([&] { return stack.Stats().waiting + stack.Stats().running == 1; }));
  context.TryCancel();
  native_v1::GenerateResponse message;
  EXPECT_FALSE(reader->Read(&message));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(CallIsCounted(stack, "vllm.Inference.GenerateStream", 1));
  EXPECT_TRUE(stack.BecomesIdle());
}

TEST(NativeServiceTest, ControlDescribesServerAndModel) {
  GrpcStackOptions options;
  options.grpc.model_root = "/models/fake";
  options.frontend.names.further = {"alias"};
  GrpcStack stack(std::move(options));
  const auto stub = NewControl(stack);
  grpc::ClientContext first, second, third;
  native_v1::ModelInfo model;
  ASSERT_TRUE(stub->GetModelInfo(&first, {}, &model).ok());
  EXPECT_EQ(model.model_id(), "/models/fake");
  EXPECT_EQ(model.served_model_name(), "fake-model");
  EXPECT_THAT(model.served_model_aliases(), ::testing::ElementsAre("alias"));
  EXPECT_TRUE(model.supports_text_input() && model.supports_token_ids_input());
  EXPECT_FALSE(model.supports_multimodal());
  native_v1::ServerInfo server, again;
  ASSERT_TRUE(stub->GetServerInfo(&second, {}, &server).ok());
  EXPECT_EQ(server.total_kv_blocks(), static_cast<uint64_t>(stack.Stats().pages_total));
  ASSERT_TRUE(stub->GetServerInfo(&third, {}, &again).ok());
  EXPECT_FALSE(server.instance_id().empty());
  EXPECT_EQ(server.instance_id(), again.instance_id()) << "of the process";
}

native_v1::GetKvEventSourcesResponse SourcesOf(const std::string& endpoint) {
  GrpcStackOptions options;
  options.kv_events.endpoint = endpoint;
  options.kv_events.topic = "kv";
  options.kv_events.page_size = 16;
  GrpcStack stack(std::move(options));
  grpc::ClientContext context;
  native_v1::GetKvEventSourcesResponse sources;
  EXPECT_TRUE(NewControl(stack)->GetKvEventSources(&context, {}, &sources).ok());
  return sources;
}

TEST(NativeServiceTest, KvEventSourceIsWhereASubscriberConnects) {
  EXPECT_EQ(SourcesOf("").sources_size(), 0);
  EXPECT_EQ(SourcesOf("inproc://events").sources_size(), 0) << "not for other processes";
  EXPECT_EQ(SourcesOf("tcp://127.0.0.1:9").sources_size(), 0) << "the server connects";
  const native_v1::GetKvEventSourcesResponse sources = SourcesOf("tcp://*:0");
  ASSERT_EQ(sources.sources_size(), 1);
  const native_v1::KvEventSource& source = sources.sources(0);
  EXPECT_EQ(source.transport(), "zmq");
  EXPECT_EQ(source.encoding(), "msgpack");
  EXPECT_THAT(source.endpoint(), StartsWith("tcp://0.0.0.0:"));
  EXPECT_THAT(source.endpoint(), ::testing::Not(HasSubstr(":0:"))) << "the port that was chosen";
  EXPECT_EQ(source.topic(), "kv");
  EXPECT_TRUE(source.has_data_parallel_rank());
  EXPECT_EQ(source.data_parallel_rank(), 0u);
  EXPECT_EQ(source.replay_endpoint(), "");
  EXPECT_EQ(source.buffer_steps(), 10000u);
}

TEST(NativeServiceTest, HealthServiceKnowsBothServices) {
  GrpcStack stack;
  for (const std::string name : {kNativeInferenceName, kNativeControlName}) {
    const std::string request = "\x0a" + std::string(1, static_cast<char>(name.size())) + name;
    const auto [status, reply] = CallWithBytes(stack.NewChannel(), "/grpc.health.v1.Health/Check",
                                               request);
    EXPECT_EQ(reply, "\x08\x01") << name << ": " << status.error_message();
  }
}

TEST(NativeServiceTest, EveryMethodNeedsAKey) {
  GrpcStackOptions options;
  options.keys = "secret-key-0123456789";
  GrpcStack stack(options);
  const auto channel = stack.NewChannel();
  for (const char* const method :
       {"/vllm.Inference/Generate", "/vllm.Inference/GenerateStream", "/vllm.Control/GetServerInfo",
        "/vllm.Control/GetModelInfo", "/vllm.Control/Abort", "/vllm.Control/GetKvEventSources"}) {
    EXPECT_EQ(CallWithBytes(channel, method, "").first.error_code(),
              grpc::StatusCode::UNAUTHENTICATED)
        << method;
    EXPECT_NE(CallWithBytes(channel, method, "", options.keys).first.error_code(),
              grpc::StatusCode::UNAUTHENTICATED)
        << method;
  }
  EXPECT_EQ(CallWithBytes(channel, "/vllm.Control/Sleep", "", options.keys).first.error_code(),
            grpc::StatusCode::UNIMPLEMENTED)
      << "a method that is left out";
}

}  // namespace
}  // namespace diffserve
