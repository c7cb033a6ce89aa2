// SPDX-License-Identifier: Apache-2.0
// A request is ended by its id only by the client that made it, over every API. Another client gets
// the answer for an unknown id.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "inference/grpc_service.grpc.pb.h"
#include "tests/testing/server/grpc_stack.h"
#include "tests/testing/server/http_client.h"
#include "vllm/control.grpc.pb.h"
#include "vllm/grpc/engine/vllm_engine.grpc.pb.h"

namespace diffserve {
namespace {

namespace vllm_v1 = ::vllm::grpc::engine;
namespace native_v1 = ::vllm;
using testing::ClientReply;
using testing::Eventually;
using testing::Finish;
using testing::GrpcStack;
using testing::GrpcStackOptions;
using testing::HttpClient;
using testing::RequestOf;
using testing::WithHeldSteps;

class RequestOwnerTest : public ::testing::Test {
 protected:
  static GrpcStackOptions WithKeys() {
    GrpcStackOptions options = WithHeldSteps();
    options.keys = "one\ntwo\n";
    return options;
  }
  static std::string Bearer(const std::string& key) {
    return "Authorization: Bearer " + key + "\r\n";
  }
  static void Present(const std::string& key, grpc::ClientContext& context) {
    context.AddMetadata("authorization", "Bearer " + key);
  }

  // A running gRPC request.
  struct Running {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader;
    std::string id;  // as the server calls it
  };
  std::unique_ptr<Running> Begin(const std::string& key, const std::string& id) {
    auto running = std::make_unique<Running>();
    Present(key, running->context);
    v1::GenerateRequest request = RequestOf({1, 2, 3}, 4000);
    request.set_request_id(id);
    running->reader = stub_->Generate(&running->context, request);
    // Otherwise the others could use up the steps that follow.
    ++num_running_;
    EXPECT_TRUE(Eventually(
        [&] { return stack_.Stats().running + stack_.Stats().waiting >= num_running_; }));
    stack_.steps.Allow(20);
    v1::GenerateResponse message;
    EXPECT_TRUE(running->reader->Read(&message));
    running->id = message.start().request_id();
    return running;
  }
  static grpc::StatusCode EndOf(Running& running) {
    return Finish(running.context, *running.reader).status.error_code();
  }

  grpc::Status Cancel(const std::string& key, const std::string& id) {
    grpc::ClientContext context;
    Present(key, context);
    v1::CancelRequest cancel;
    v1::CancelResponse cancelled;
    cancel.set_request_id(id);
    return stub_->Cancel(&context, cancel, &cancelled);
  }
  grpc::Status Abort(const std::string& key, const std::string& id) {
    grpc::ClientContext context;
    Present(key, context);
    vllm_v1::AbortRequest abort;
    vllm_v1::AbortResponse aborted;
    abort.add_request_ids(id);
    return vllm_v1::VllmEngine::NewStub(stack_.NewChannel())->Abort(&context, abort, &aborted);
  }
  grpc::Status AbortNatively(const std::string& key, const std::string& id) {
    grpc::ClientContext context;
    Present(key, context);
    native_v1::AbortRequest abort;
    native_v1::AbortResponse aborted;
    abort.add_request_ids(id);
    return native_v1::Control::NewStub(stack_.NewChannel())->Abort(&context, abort, &aborted);
  }
  // What another key's Cancel and Abort of `id` answer is what they answer for an unknown id.
  void ExpectUnknown(const std::string& key, const std::string& id) {
    const grpc::Status found = Cancel(key, id), unknown = Cancel(key, "no-such-id");
    EXPECT_EQ(found.error_code(), grpc::StatusCode::NOT_FOUND);
    EXPECT_EQ(found.error_message(), unknown.error_message());
    EXPECT_TRUE(Abort(key, id).ok()) << "as for an unknown id";
    EXPECT_TRUE(AbortNatively(key, id).ok()) << "as for an unknown id";
  }

  int num_running_ = 0;  // requests that have begun
  GrpcStack stack_{WithKeys()};
  std::unique_ptr<v1::Inference::Stub> stub_ = stack_.NewStub();
};

TEST_F(RequestOwnerTest, OnlyTheOwnKeyCancels) {
  const auto running = Begin("one", "");
  ExpectUnknown("two", running->id);
  EXPECT_EQ(stack_.Stats().num_finished(FinishReason::kCancelled), 0u);
  EXPECT_TRUE(Cancel("one", running->id).ok()) << "it still runs";
  EXPECT_EQ(EndOf(*running), grpc::StatusCode::CANCELLED);
}

TEST_F(RequestOwnerTest, AbortOfTheOwnKeyEndsIt) {
  const auto running = Begin("one", "mine");
  ExpectUnknown("two", "mine");
  EXPECT_TRUE(Abort("one", "mine").ok());
  EXPECT_EQ(EndOf(*running), grpc::StatusCode::CANCELLED);
}

TEST_F(RequestOwnerTest, NativeAbortOfTheOwnKeyEndsIt) {
  const auto running = Begin("one", "mine");
  ExpectUnknown("two", "mine");
  EXPECT_TRUE(AbortNatively("one", "mine").ok());
  EXPECT_EQ(EndOf(*running), grpc::StatusCode::CANCELLED);
}

TEST_F(RequestOwnerTest, TwoKeysMayUseTheSameId) {
  const auto first = Begin("one", "same"), second = Begin("two", "same");
  EXPECT_TRUE(Cancel("two", "same").ok());
  EXPECT_EQ(EndOf(*second), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(Cancel("two", "same").error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_TRUE(Cancel("one", "same").ok()) << "it still runs";
  EXPECT_EQ(EndOf(*first), grpc::StatusCode::CANCELLED);
}

TEST_F(RequestOwnerTest, HttpRequestIsCancelledByItsKeyOverGrpc) {
  HttpClient client(stack_.port());
  ASSERT_TRUE(client.SendPost("/v1/completions",
                              R"({"prompt":"a","max_tokens":400,"ignore_eos":true,"stream":true})",
                              Bearer("one") + "X-Request-Id: chosen\r\n"));
  stack_.steps.Allow(20);
  ClientReply reply;
  ASSERT_TRUE(client.ReadHead(&reply));
  EXPECT_EQ(reply.fields["x-request-id"], "chosen");
  ExpectUnknown("two", "chosen");
  EXPECT_TRUE(Cancel("one", "chosen").ok()) << "it still runs";
  std::string text, piece;
  while (client.ReadChunk(&piece)) text += piece;
  EXPECT_NE(text.find("cancelled"), std::string::npos) << text;
}

TEST_F(RequestOwnerTest, KserveAndVllmRequestsAreCancelledByTheirKey) {
  grpc::ClientContext infer_context, vllm_context;
  Present("one", infer_context);
  Present("one", vllm_context);
  inference::ModelInferRequest infer;
  infer.set_model_name("fake-model");
  infer.set_id("infer");
  auto& input = *infer.add_inputs();
  input.set_name("text_input");
  input.set_datatype("BYTES");
  input.add_shape(1);
  input.mutable_contents()->add_bytes_contents("hello");
  (*infer.mutable_parameters())["max_tokens"].set_int64_param(4000);
  const auto kserve = inference::GRPCInferenceService::NewStub(stack_.NewChannel())
                          ->ModelStreamInfer(&infer_context);
  ASSERT_TRUE(kserve->Write(infer));
  vllm_v1::GenerateRequest generate;
  generate.mutable_tokenized()->add_input_ids(3);
  generate.mutable_sampling_params()->set_max_tokens(4000);
  generate.set_request_id("generate");
  generate.set_stream(true);
  const auto vllm =
      vllm_v1::VllmEngine::NewStub(stack_.NewChannel())->Generate(&vllm_context, generate);
  ASSERT_TRUE(Eventually([&] { return stack_.Stats().running + stack_.Stats().waiting >= 2; }));
  for (const char* const id : {"infer", "generate"}) {
    ExpectUnknown("two", id);
    EXPECT_TRUE(Cancel("one", id).ok()) << id << " still runs";
  }
  inference::ModelStreamInferResponse ended;
  ASSERT_TRUE(kserve->Read(&ended));
  EXPECT_EQ(ended.error_message(), "the request was cancelled");
  infer_context.TryCancel();
  (void)kserve->Finish();
  vllm_v1::GenerateResponse message;
  while (vllm->Read(&message)) {
  }
  EXPECT_EQ(vllm->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(RequestOwnerTest, IdsOfCallsTellNothingOfTheNextOnes) {
  stack_.steps.Open();
  std::set<std::string> ids;
  std::vector<uint64_t> numbers;
  for (int i = 0; i < 8; ++i) {
    grpc::ClientContext context;
    Present(i % 2 == 0 ? "one" : "two", context);
    const auto reader = stub_->Generate(&context, RequestOf({1, 2, 3}, 1));
    v1::GenerateResponse message;
    ASSERT_TRUE(reader->Read(&message));
    const std::string id = message.start().request_id();
    ASSERT_TRUE(id.starts_with("grpc-")) << id;
    numbers.push_back(std::stoull(id.substr(5)));
    ids.insert(std::to_string(numbers.back() >> 32));
    Finish(context, *reader);
  }
  EXPECT_EQ(ids.size(), 8u) << "the upper halves of neighbours differ too";
}

}  // namespace
}  // namespace diffserve
