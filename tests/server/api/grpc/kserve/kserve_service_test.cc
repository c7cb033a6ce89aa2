// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "inference/grpc_service.grpc.pb.h"
#include "server/api/grpc/kserve/service.h"
#include "tests/testing/server/grpc_stack.h"

namespace diffserve {
namespace {

using inference::GRPCInferenceService;
using inference::ModelInferRequest;
using inference::ModelInferResponse;
using inference::ModelStreamInferResponse;
using testing::CallIsCounted;
using testing::CallWithBytes;
using testing::Eventually;
using testing::ExpectedTokens;
using testing::GrpcStack;
using testing::GrpcStackOptions;
using ::testing::HasSubstr;
using testing::WithHeldSteps;
using Stream = grpc::ClientReaderWriter<ModelInferRequest, ModelStreamInferResponse>;

std::unique_ptr<GRPCInferenceService::Stub> NewKserveStub(const GrpcStack& stack) {
  return GRPCInferenceService::NewStub(stack.NewChannel());
}

ModelInferRequest InferRequestOf(const std::vector<int32_t>& ids, int max_tokens,
                                 const std::string& id = {}) {
  ModelInferRequest message;
  message.set_model_name("fake-model");
  message.set_id(id);
  auto& input = *message.add_inputs();
  input.set_name("input_ids");
  input.set_datatype("INT32");
  input.add_shape(static_cast<int64_t>(ids.size()));
  input.mutable_contents()->mutable_int_contents()->Add(ids.begin(), ids.end());
  (*message.mutable_parameters())["max_tokens"].set_int64_param(max_tokens);
  (*message.mutable_parameters())["temperature"].set_int64_param(0);
  return message;
}

std::vector<int32_t> IdsOf(const ModelInferResponse& response) {
  for (int i = 0; i < response.outputs_size(); ++i) {
    if (response.outputs(i).name() != "output_ids") continue;
    const std::string& raw = response.raw_output_contents(i);
    std::vector<int32_t> ids(raw.size() / sizeof(int32_t));
    std::memcpy(ids.data(), raw.data(), raw.size());
    return ids;
  }
  return {};
}

// The text of the output at `index`, which is BYTES.
std::string TextOf(const ModelInferResponse& response, int index) {
  return response.raw_output_contents(index).substr(sizeof(uint32_t));
}

bool IsFinal(const ModelStreamInferResponse& response) {
  return response.infer_response().parameters().at("triton_final_response").bool_param();
}

TEST(KserveServiceTest, MetadataDescribesServerAndModel) {
  GrpcStack stack;
  const auto stub = NewKserveStub(stack);
  inference::ServerMetadataResponse server;
  grpc::ClientContext first, second;
  ASSERT_TRUE(stub->ServerMetadata(&first, {}, &server).ok());
  EXPECT_EQ(server.name(), "diffserve");
  EXPECT_FALSE(server.version().empty());
  inference::ModelMetadataRequest request;
  inference::ModelMetadataResponse model;
  request.set_name("fake-model");
  ASSERT_TRUE(stub->ModelMetadata(&second, request, &model).ok());
  EXPECT_EQ(model.name(), "fake-model");
  EXPECT_EQ(model.platform(), "diffserve_fake");
  EXPECT_EQ(model.inputs(0).name(), "text_input");
  EXPECT_EQ(model.outputs_size(), 3);
}

TEST(KserveServiceTest, ReadyFollowsTheHealthServiceAndTheModelsName) {
  GrpcStack stack;
  const auto stub = NewKserveStub(stack);
  const auto server_is_ready = [&] {
    grpc::ClientContext context;
    inference::ServerReadyResponse response;
    EXPECT_TRUE(stub->ServerReady(&context, {}, &response).ok());
    return response.ready();
  };
  const auto model_ready = [&](const std::string& name, bool* ready) {
    grpc::ClientContext context;
    inference::ModelReadyRequest request;
    inference::ModelReadyResponse response;
    request.set_name(name);
    const grpc::Status status = stub->ModelReady(&context, request, &response);
    *ready = response.ready();
    return status.error_code();
  };
  bool ready = false;
  EXPECT_TRUE(server_is_ready());
  EXPECT_EQ(model_ready("fake-model", &ready), grpc::StatusCode::OK);
  EXPECT_TRUE(ready);
  EXPECT_EQ(model_ready("other", &ready), grpc::StatusCode::NOT_FOUND);
  stack.grpc_server->SetServing(false);
  EXPECT_FALSE(server_is_ready());
  EXPECT_EQ(model_ready("fake-model", &ready), grpc::StatusCode::OK);
  EXPECT_FALSE(ready);
  grpc::ClientContext context;
  inference::ServerLiveResponse live;
  EXPECT_TRUE(stub->ServerLive(&context, {}, &live).ok());
  EXPECT_TRUE(live.live());
}

TEST(KserveServiceTest, ModelInferAnswersWithThePromptAndAllTokens) {
  GrpcStack stack;
  const auto stub = NewKserveStub(stack);
  grpc::ClientContext context;
  ModelInferResponse response;
  const grpc::Status status = stub->ModelInfer(&context, InferRequestOf({5, 6, 7}, 20, "one"),
                                               &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  std::vector<int32_t> expected = ExpectedTokens(stack, {5, 6, 7}, 20);
  expected.insert(expected.begin(), {5, 6, 7});
  EXPECT_EQ(IdsOf(response), expected);
  EXPECT_EQ(response.id(), "one");
  EXPECT_EQ(TextOf(response, 2), "length");
  EXPECT_EQ(response.parameters().at("completion_tokens").int64_param(), 20);
  EXPECT_TRUE(CallIsCounted(stack, "ModelInfer", 0));
  EXPECT_TRUE(stack.BecomesIdle());
}

TEST(KserveServiceTest, ModelInferRefusesWithTheFieldsName) {
  GrpcStack stack;
  const auto stub = NewKserveStub(stack);
  const auto refused = [&](const ModelInferRequest& request, grpc::StatusCode code,
                           const std::string& param) {
    grpc::ClientContext context;
    ModelInferResponse response;
    EXPECT_EQ(stub->ModelInfer(&context, request, &response).error_code(), code) << param;
    EXPECT_EQ(testing::TrailerOf(context, "param"), param);
  };
  ModelInferRequest request = InferRequestOf({5}, 5);
  request.set_model_name("other");
  refused(request, grpc::StatusCode::NOT_FOUND, "model_name");
  refused(InferRequestOf({}, 5), grpc::StatusCode::INVALID_ARGUMENT, "input_ids");
  refused(InferRequestOf({1 << 30}, 5), grpc::StatusCode::INVALID_ARGUMENT, "input_ids");
  request = InferRequestOf({5}, 5);
  request.mutable_inputs(0)->set_name("text_input");
  request.mutable_inputs(0)->set_datatype("BYTES");
  request.mutable_inputs(0)->mutable_shape()->Set(0, 1);
  request.mutable_inputs(0)->clear_contents();
  request.mutable_inputs(0)->mutable_contents()->add_bytes_contents(std::string(100'000, 'x'));
  refused(request, grpc::StatusCode::INVALID_ARGUMENT, "text_input");
  refused(InferRequestOf({5}, -1), grpc::StatusCode::INVALID_ARGUMENT, "max_tokens");
  refused(InferRequestOf({5}, 5, std::string(129, 'i')), grpc::StatusCode::INVALID_ARGUMENT,
          "request_id");
}

TEST(KserveServiceTest, EndingModelInferFreesEverything) {
  GrpcStack stack(WithHeldSteps());
  const auto stub = NewKserveStub(stack);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  ModelInferResponse response;
  grpc::Status status;
  const auto call = stub->AsyncModelInfer(&context, InferRequestOf({1, 2}, 4000), &queue);
  call->Finish(&response, &status, nullptr);
  EXPECT_TRUE(Eventually([&] { return stack.Stats().waiting + stack.Stats().running == 1; }));
  context.TryCancel();
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(CallIsCounted(stack, "ModelInfer", 1));
  EXPECT_TRUE(stack.BecomesIdle());
  queue.Shutdown();
}

TEST(KserveServiceTest, TimeoutEndsModelInfer) {
  GrpcStack stack(WithHeldSteps());
  const auto stub = NewKserveStub(stack);
  ModelInferRequest request = InferRequestOf({1, 2}, 4000);
  (*request.mutable_parameters())["timeout"].set_int64_param(20'000);
  grpc::ClientContext context;
  ModelInferResponse response;
  EXPECT_EQ(stub->ModelInfer(&context, request, &response).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(stack.BecomesIdle());
}

TEST(KserveServiceTest, StreamAnswersItsRequestsInOrder) {
  GrpcStack stack;
  const auto stub = NewKserveStub(stack);
  grpc::ClientContext context;
  const std::unique_ptr<Stream> stream = stub->ModelStreamInfer(&context);
  for (int i = 0; i < 3; ++i)
    ASSERT_TRUE(stream->Write(InferRequestOf({5, i}, 10 + i, std::to_string(i))));
  ASSERT_TRUE(stream->WritesDone());
  ModelStreamInferResponse response;
  for (int i = 0; i < 3; ++i) {
    std::vector<int32_t> ids;
    do {
      ASSERT_TRUE(stream->Read(&response)) << i;
      EXPECT_EQ(response.error_message(), "");
      EXPECT_EQ(response.infer_response().id(), std::to_string(i));
      const std::vector<int32_t> piece = IdsOf(response.infer_response());
      ids.insert(ids.end(), piece.begin(), piece.end());
    } while (!IsFinal(response));
    EXPECT_EQ(ids, ExpectedTokens(stack, {5, i}, 10 + i)) << i;
    EXPECT_EQ(TextOf(response.infer_response(), 2), "length");
  }
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(CallIsCounted(stack, "ModelStreamInfer", 0));
}

TEST(KserveServiceTest, RefusedRequestDoesNotEndItsStream) {
  GrpcStack stack;
  const auto stub = NewKserveStub(stack);
  grpc::ClientContext context;
  const std::unique_ptr<Stream> stream = stub->ModelStreamInfer(&context);
  ModelStreamInferResponse response;
  for (const ModelInferRequest& bad : {InferRequestOf({5}, -1, "bad"), InferRequestOf({}, 5, "bad"),
                                       InferRequestOf({1 << 30}, 5, "bad")}) {
    ASSERT_TRUE(stream->Write(bad));
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_NE(response.error_message(), "");
    EXPECT_EQ(response.infer_response().id(), "bad");
    EXPECT_TRUE(IsFinal(response));
  }
  ModelInferRequest whole = InferRequestOf({5}, 4, "good");
  (*whole.mutable_parameters())["stream"].set_bool_param(false);
  ASSERT_TRUE(stream->Write(whole));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.error_message(), "");
  EXPECT_TRUE(IsFinal(response));
  EXPECT_EQ(IdsOf(response.infer_response()).size(), 5u) << "the prompt and four tokens";
  stream->WritesDone();
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(KserveServiceTest, StreamRunsOneRequestAtATime) {
  GrpcStack stack(WithHeldSteps());
  const auto stub = NewKserveStub(stack);
  grpc::ClientContext context;
  const std::unique_ptr<Stream> stream = stub->ModelStreamInfer(&context);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(stream->Write(InferRequestOf({5, i}, 100)));
  stack.steps.Allow(2);
  ModelStreamInferResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(stack.Stats().waiting + stack.Stats().running, 1);
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(CallIsCounted(stack, "ModelStreamInfer", 1));
  EXPECT_TRUE(stack.BecomesIdle());
  EXPECT_EQ(stack.Stats().num_finished(FinishReason::kCancelled), 1u);
}

TEST(KserveServiceTest, StreamWithoutARequestEndsWithItsClientOrTheServer) {
  GrpcStack stack;
  const auto stub = NewKserveStub(stack);
  grpc::ClientContext first, second, third;
  const std::unique_ptr<Stream> done = stub->ModelStreamInfer(&first);
  done->WritesDone();
  EXPECT_TRUE(done->Finish().ok());
  const std::unique_ptr<Stream> gone = stub->ModelStreamInfer(&second);
  second.TryCancel();
  EXPECT_EQ(gone->Finish().error_code(), grpc::StatusCode::CANCELLED);
  const std::unique_ptr<Stream> idle = stub->ModelStreamInfer(&third);
  stack.StopAll();
  EXPECT_FALSE(idle->Finish().ok());
}

TEST(KserveServiceTest, AllButTheProbesNeedAKey) {
  GrpcStackOptions options;
  options.keys = "secret-key-0123456789";
  GrpcStack stack(options);
  const auto channel = stack.NewChannel();
  const std::string service = "/inference.GRPCInferenceService/";
  for (const char* const method : {"ServerLive", "ServerReady"})
    EXPECT_TRUE(CallWithBytes(channel, service + method, "").first.ok()) << method;
  for (const char* const method :
       {"ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer", "ModelStreamInfer"}) {
    EXPECT_EQ(CallWithBytes(channel, service + method, "").first.error_code(),
              grpc::StatusCode::UNAUTHENTICATED)
        << method;
  }
  EXPECT_TRUE(CallWithBytes(channel, service + "ServerMetadata", "", options.keys).first.ok());
}

TEST(KserveServiceTest, InvalidMessageBytesAreRefused) {
  GrpcStack stack;
  const auto channel = stack.NewChannel();
  const std::string bad(100, '\xff');
  const std::string service = "/inference.GRPCInferenceService/";
  EXPECT_EQ(CallWithBytes(channel, service + "ModelInfer", bad).first.error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  const auto [status, reply] = CallWithBytes(channel, service + "ModelStreamInfer", bad);
  ModelStreamInferResponse response;
  ASSERT_TRUE(response.ParseFromString(reply));
  EXPECT_THAT(response.error_message(), HasSubstr("protobuf"));
}

}  // namespace
}  // namespace diffserve
