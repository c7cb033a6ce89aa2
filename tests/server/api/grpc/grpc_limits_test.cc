// SPDX-License-Identifier: Apache-2.0
// Messages that the gRPC port refuses before it allocates anything, and calls that it ends.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/serving/request/request_checks.h"
#include "tests/testing/server/grpc_stack.h"
#include "tests/testing/server/http_client.h"

namespace diffserve {
namespace {

using testing::CallWithBytes;
using testing::Eventually;
using testing::Finish;
using testing::Generate;
using testing::Generated;
using testing::GrpcStack;
using testing::GrpcStackOptions;
using ::testing::HasSubstr;
using testing::HttpClient;
using testing::kListServices;
using testing::kReflection;
using testing::RequestOf;

constexpr char kGenerate[] = "/diffserve.v1.Inference/Generate";
constexpr char kTokenize[] = "/diffserve.v1.Inference/Tokenize";

// A field of the wire's type 2.
std::string Field(int number, const std::string& bytes) {
  std::string out(1, static_cast<char>(number << 3 | 2));
  for (size_t size = bytes.size(); true; size >>= 7) {
    out.push_back(static_cast<char>((size & 0x7F) | (size > 0x7F ? 0x80 : 0)));
    if (size <= 0x7F) break;
  }
  return out + bytes;
}

std::string Repeated(const std::string& bytes, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += bytes;
  return out;
}

GrpcStackOptions WithTemplateOnly() {
  GrpcStackOptions options;
  options.with_template = true;
  return options;
}

v1::GenerateRequest ChatOf(const std::vector<std::string>& roles) {
  v1::GenerateRequest request = RequestOf({}, 2);
  for (const std::string& role : roles) {
    v1::ChatMessage& message = *request.mutable_chat()->add_messages();
    message.set_role(role);
    message.set_content("hi");
  }
  return request;
}

TEST(GrpcLimitsTest, ConversationLimitsEqualHttps) {
  GrpcStack stack(WithTemplateOnly());
  const auto stub = stack.NewStub();
  EXPECT_TRUE(Generate(*stub, ChatOf({"system", "developer", "user", "assistant"})).status.ok());
  for (const std::string role : {"", "User", "tools", "end|><|assistant"}) {
    const Generated result = Generate(*stub, ChatOf({"user", role}));
    EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << role;
    EXPECT_EQ(result.param, "messages[1].role") << role;
  }
  const Generated long_one = Generate(*stub, ChatOf(std::vector<std::string>(4097, "user")));
  EXPECT_EQ(long_one.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(long_one.param, "messages");
  EXPECT_THAT(long_one.status.error_message(), HasSubstr("4096"));
}

TEST(GrpcLimitsTest, ListLimitsApplyBeforeAllocation) {
  GrpcStack stack(WithTemplateOnly());
  const auto channel = stack.NewChannel();
  const auto bias = Field(8, std::string("\x08\x01", 2));
  const std::pair<std::string, const char*> requests[] = {
      {Field(5, Repeated(Field(1, ""), 2'000'000)),
       "messages has too many entries; allowed: at most 4096"},
      {Repeated(Field(5, Field(1, "")), 4097),
       "messages has too many entries; allowed: at most 4096"},
      {Field(6, Repeated(bias, 4097)), "logit_bias has too many entries; allowed: at most 4096"},
      {Field(7, Repeated(Field(3, ""), 4097)), "stop has too many entries; allowed: at most 4096"},
      {Repeated(Field(15, ""), 4097), "bad_words has too many entries; allowed: at most 4096"},
      {Repeated(std::string("\x92\x03\x00", 3), 65),  // the field 50
       "too many unknown fields; allowed: at most 64"},
      {Field(5, Repeated(Field(9, ""), 65)), "too many unknown fields; allowed: at most 64"},
      {Field(15, "")[0] + std::string("\xFF", 1), "not well-formed"},
      {Field(5, "\x0a\x7f"), "not well-formed"},
      {std::string("\x7b\x7c", 2), "not well-formed"},  // a group
  };
  for (const auto& [bytes, expected] : requests) {
    const grpc::Status status = CallWithBytes(channel, kGenerate, bytes).first;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << expected;
    EXPECT_THAT(status.error_message(), HasSubstr(expected));
  }
  const std::string many = Field(2, Repeated(Field(1, ""), 5000));
  EXPECT_THAT(CallWithBytes(channel, kTokenize, many).first.error_message(), HasSubstr("4096"));
  EXPECT_TRUE(CallWithBytes(channel, kTokenize, Field(1, "hi") + Field(15, "new")).first.ok())
      << "a field of a later version is passed over";
}

TEST(GrpcLimitsTest, InvalidUtf8IsRefusedWithoutAProtobufLogLine) {
  GrpcStack stack;
  ::testing::internal::CaptureStderr();
  const grpc::Status status =
      CallWithBytes(stack.NewChannel(), kGenerate, Field(3, "\xFF\xFE")).first;
  const std::string written = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(written.find("libprotobuf"), written.npos) << written;
}

TEST(GrpcLimitsTest, CallsAreCountedAtArrivalAndAtBegin) {
  GrpcStack stack;
  const auto channel = stack.NewChannel();
  for (const char* method : {kGenerate, kTokenize, kReflection, "/unknown.Service/Method"})
    CallWithBytes(channel, method, "");
  for (const std::string stage : {"arrived", "begun"}) {
    EXPECT_THAT(stack.metrics->Render(),
                HasSubstr("diffserve_grpc_calls_total{stage=\"" + stage + "\"} 4"));
  }
}

TEST(GrpcLimitsTest, OneClientMayHoldThreeQuartersOfTheOpenCalls) {
  GrpcStackOptions options;
  options.grpc.max_open_calls = 4;
  options.hold_steps = true;
  GrpcStack stack(options);
  const auto stub = stack.NewStub();
  grpc::ClientContext contexts[3];
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>> held;
  for (grpc::ClientContext& context : contexts)
    held.push_back(stub->Generate(&context, RequestOf({1}, 5)));
  EXPECT_TRUE(Eventually([&] { return stack.Stats().waiting + stack.Stats().running == 3; }));
  const grpc::Status refused = Generate(*stub, RequestOf({1}, 5)).status;
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(refused.error_message(), "too many calls are open");
  stack.steps.Open();
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(Finish(contexts[i], *held[i]).status.ok());
  EXPECT_TRUE(Eventually([&] { return Generate(*stub, RequestOf({1}, 5)).status.ok(); }));
}

TEST(GrpcLimitsTest, CallOfAStalledReaderIsEnded) {
  GrpcStackOptions options;
  options.grpc.write_stall_timeout_ms = 100;
  GrpcStack stack(options);
  grpc::ChannelArguments narrow;
  narrow.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  narrow.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1000);
  const auto stub = v1::Inference::NewStub(
      grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(stack.grpc_server->port()),
                                grpc::InsecureChannelCredentials(), narrow));
  grpc::ClientContext context;
  const auto unread = stub->Generate(&context, RequestOf({1}, 4000));
  const std::string counted = "diffserve_grpc_requests_total{method=\"Generate\",code=\"1\"} 1";
  EXPECT_TRUE(
      Eventually([&] { return stack.metrics->Render().find(counted) != std::string::npos; }));
  Finish(context, *unread);
}

TEST(GrpcLimitsTest, IdleConnectionIsClosed) {
  GrpcStackOptions options;
  options.grpc.keepalive_time_ms = options.grpc.keepalive_timeout_ms = 100;
  GrpcStack stack(options);
  const auto stub = stack.NewStub();
  EXPECT_TRUE(Generate(*stub, RequestOf({1}, 2)).status.ok());
  for (const std::string begun : {"", "PRI * HTTP/2.0"}) {
    HttpClient peer(stack.grpc_server->port());
    peer.Send(begun);
    EXPECT_TRUE(peer.ReadToEnd()) << begun;
  }
  EXPECT_TRUE(Generate(*stub, RequestOf({1}, 2)).status.ok());
}

TEST(GrpcLimitsTest, OldestReflectionStreamIsEndedAtTheLimit) {
  GrpcStackOptions options;
  options.grpc.max_reflection_streams = 3;
  GrpcStack stack(options);
  const auto channel = stack.NewChannel();
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(channel);
  const auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return ok;
  };
  struct Held {
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
  };
  std::vector<std::unique_ptr<Held>> held;
  const grpc::Slice slice(kListServices);
  for (int i = 0; i < 20; ++i) {
    Held& last = *held.emplace_back(std::make_unique<Held>());
    last.stream = stub.PrepareCall(&last.context, kReflection, &queue);
    last.stream->StartCall(nullptr);
    EXPECT_TRUE(wait());
    last.stream->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    EXPECT_TRUE(wait());
    grpc::ByteBuffer reply;
    last.stream->Read(&reply, nullptr);
    EXPECT_TRUE(wait()) << "stream " << i << " gets no answer";
  }
  for (size_t i = 0; i < held.size(); ++i) {
    if (i >= 17) held[i]->stream->WritesDone(nullptr), wait();
    grpc::Status status;
    held[i]->stream->Finish(&status, nullptr);
    wait();
    EXPECT_EQ(status.error_code(),
              i < 17 ? grpc::StatusCode::RESOURCE_EXHAUSTED : grpc::StatusCode::OK)
        << i;
  }
  queue.Shutdown();
}

TEST(GrpcLimitsTest, ReflectionDescribesTheHealthService) {
  GrpcStack stack;
  const auto [status, reply] = CallWithBytes(stack.NewChannel(), kReflection,
                                             Field(4, "grpc.health.v1.Health"));
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(reply, HasSubstr("HealthCheckRequest"));
  EXPECT_THAT(reply, HasSubstr("SERVICE_UNKNOWN"));
}

TEST(GrpcLimitsTest, CallThatEndsBeforeItsMessageIsCounted) {
  GrpcStack stack;
  const auto channel = stack.NewChannel();
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(channel);
  const auto call = stub.PrepareCall(&context, kGenerate, &queue);
  void* tag = nullptr;
  bool ok = false;
  call->StartCall(nullptr);
  queue.Next(&tag, &ok);
  context.TryCancel();
  grpc::Status status;
  call->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  queue.Shutdown();
  const std::string counted = "diffserve_grpc_requests_total{method=\"Generate\",code=\"1\"} 1";
  EXPECT_TRUE(
      Eventually([&] { return stack.metrics->Render().find(counted) != std::string::npos; }));
}

}  // namespace
}  // namespace diffserve
