// SPDX-License-Identifier: Apache-2.0
// Connections of the gRPC port whose calls are cut off: who else on the connection is affected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api/grpc/port/listener.h"
#include "tests/testing/kernels/eventually.h"
#include "tests/testing/server/grpc_stack.h"
#include "tests/testing/server/http_client.h"

namespace diffserve {
namespace {

using testing::Eventually;
using testing::ExpectedTokens;
using testing::Finish;
using testing::Generated;
using testing::GrpcStack;
using testing::GrpcStackOptions;
using testing::HttpClient;
using testing::RequestOf;
using testing::WithHeldSteps;

constexpr char kGenerateMethod[] = "/diffserve.v1.Inference/Generate";
constexpr char kGetModel[] = "/diffserve.v1.Inference/GetModel";

bool CallsOfStage(const GrpcStack& stack, const std::string& stage, int count) {
  const std::string sample = "diffserve_grpc_calls_total{stage=\"" + stage + "\"} " +
                             std::to_string(count) + "\n";
  return Eventually([&] { return stack.metrics->Render().find(sample) != std::string::npos; });
}

grpc::StatusCode GetModel(v1::Inference::Stub& stub) {
  grpc::ClientContext context;
  v1::GetModelResponse model;
  return stub.GetModel(&context, {}, &model).error_code();
}

// A connection of HTTP/2 frames, so that a test decides what comes in which order.
class FrameClient {
 public:
  enum Kind : char { kData = 0, kHeaders = 1, kReset = 3, kSettings = 4 };
  static constexpr char kEndStream = 1, kEndHeaders = 4;

  explicit FrameClient(int port) : peer_(port) {
    peer_.Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, 0, ""));
  }

  static std::string Frame(Kind kind, char flags, uint32_t stream, const std::string& payload) {
    const std::string size = BigEndian(static_cast<uint32_t>(payload.size()));
    return size.substr(1) + static_cast<char>(kind) + flags + BigEndian(stream) + payload;
  }
  // The frames of a call on the next stream. `timeout` is as in the field grpc-timeout.
  std::string Call(const std::string& path, const std::string& message,
                   const std::string& timeout = {}) {
    std::vector<std::pair<std::string, std::string>> fields = {
        {":method", "POST"}, {":scheme", "http"}, {":path", path},
        {":authority", "x"}, {"te", "trailers"},  {"content-type", "application/grpc"}};
    if (!timeout.empty()) fields.emplace_back("grpc-timeout", timeout);
    std::string block;
    for (const auto& [name, value] : fields)  // literal, not indexed
      block += '\0' + (static_cast<char>(name.size()) + name) +
               (static_cast<char>(value.size()) + value);
    stream_ += 2;
    return Frame(kHeaders, kEndHeaders, stream_, block) +
           Frame(kData, kEndStream, stream_,
                 '\0' + BigEndian(static_cast<uint32_t>(message.size())) + message);
  }
  std::string ResetOf(uint32_t stream) const { return Frame(kReset, 0, stream, BigEndian(8)); }
  uint32_t stream() const { return stream_; }  // of the last call
  bool Send(const std::string& frames) { return peer_.Send(frames); }
  void ReadAvailable() {
    while (peer_.ReadSome(0)) {
    }
  }
  // Reads until the stream has ended and returns its messages.
  std::vector<std::string> MessagesOf(uint32_t stream) {
    while (!ended_[stream]) {
      if (!TakeFrame() && !peer_.ReadSome()) {
        ADD_FAILURE() << "the connection ended before the stream";
        break;
      }
    }
    std::vector<std::string> messages;
    for (std::string_view rest = data_[stream]; rest.size() >= 5;) {
      const uint32_t size = Number(rest.substr(1, 4));
      messages.emplace_back(rest.substr(5, size));
      rest.remove_prefix(5 + size);
    }
    return messages;
  }

 private:
  static std::string BigEndian(uint32_t number) {
    std::string bytes;
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift);
    return bytes;
  }
  static uint32_t Number(std::string_view bytes) {
    uint32_t number = 0;
    for (const char byte : bytes) number = number << 8 | static_cast<unsigned char>(byte);
    return number;
  }
  // Takes the next received frame; false if it is not whole.
  bool TakeFrame() {
    const std::string_view rest = std::string_view(peer_.buffered()).substr(taken_);
    if (rest.size() < 9 || rest.size() < 9 + Number(rest.substr(0, 3))) return false;
    const std::string_view payload = rest.substr(9, Number(rest.substr(0, 3)));
    const uint32_t stream = Number(rest.substr(5, 4));
    if (rest[3] == kData) data_[stream] += payload;
    const bool has_end = rest[3] == kData || rest[3] == kHeaders;
    if (rest[3] == kReset || (has_end && (rest[4] & kEndStream) != 0)) ended_[stream] = true;
    taken_ += 9 + payload.size();
    return true;
  }

  HttpClient peer_;
  uint32_t stream_ = static_cast<uint32_t>(-1);
  size_t taken_ = 0;  // bytes of received frames
  std::map<uint32_t, std::string> data_;
  std::map<uint32_t, bool> ended_;
};

TEST(GrpcConnectionsTest, CallsPastTheirDeadlineDoNotAffectOthers) {
  GrpcStack stack(WithHeldSteps());
  FrameClient client(stack.grpc_server->port());
  client.Send(client.Call(kGenerateMethod, RequestOf({1}, 5).SerializeAsString()));
  const uint32_t other = client.stream();
  EXPECT_TRUE(Eventually([&] { return stack.Stats().running + stack.Stats().waiting == 1; }));

  const std::string request = RequestOf({2}, 5).SerializeAsString();
  for (int arrived = 1; arrived < 1201; arrived += 100) {
    std::string calls, resets;
    for (int i = 0; i < 100; ++i) {
      calls += client.Call(kGenerateMethod, request, "1m");
      resets += client.ResetOf(client.stream());
    }
    client.Send(calls);
    ASSERT_TRUE(CallsOfStage(stack, "arrived", arrived + 100));
    client.Send(resets);  // the client's own timers
  }
  client.Send(client.Call(kGetModel, ""));
  EXPECT_EQ(client.MessagesOf(client.stream()).size(), 1u) << "the connection takes new calls";

  stack.steps.Open();
  Generated result;
  for (const std::string& message : client.MessagesOf(other))
    EXPECT_TRUE(result.messages.emplace_back().ParseFromString(message));
  EXPECT_EQ(result.TokensOf(0), ExpectedTokens(stack, {1}, 5));
}

TEST(GrpcConnectionsTest, TooManyResetCallsEndAConnectionWhenTheOthersHaveEnded) {
  GrpcStackOptions options = WithHeldSteps();
  options.grpc.max_streams_per_connection = 4;
  GrpcStack stack(options);
  const auto channel = stack.NewChannel();
  const auto stub = v1::Inference::NewStub(channel), bystander = stack.NewStub();
  grpc::ClientContext other_context;
  const auto other = stub->Generate(&other_context, RequestOf({1}, 5));
  EXPECT_TRUE(Eventually([&] { return stack.Stats().running + stack.Stats().waiting == 1; }));

  // The text thread waits for the test, so the server keeps calls that their client has reset.
  std::promise<void> text_work;
  EXPECT_TRUE(
      stack.frontend
          ->Tokenize("another", "text", {.add_special_tokens = false},
                     [begun = text_work.get_future().share()](const auto&) { begun.wait(); })
          .ok());
  for (int reset = 1; reset <= 7; ++reset) {
    grpc::ClientContext context;
    v1::TokenizeRequest request;
    request.set_text("text");
    v1::TokenizeResponse response;
    std::promise<grpc::Status> ended;
    stub->async()->Tokenize(&context, &request, &response,
                            [&ended](const grpc::Status& status) { ended.set_value(status); });
    EXPECT_TRUE(CallsOfStage(stack, "begun", 1 + reset));
    context.TryCancel();
    EXPECT_EQ(ended.get_future().get().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_EQ(GetModel(*stub), grpc::StatusCode::UNAVAILABLE) << "no new call";
  EXPECT_EQ(GetModel(*bystander), grpc::StatusCode::OK);

  text_work.set_value();
  stack.steps.Open();
  const Generated result = Finish(other_context, *other);
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.TokensOf(0), ExpectedTokens(stack, {1}, 5));
  EXPECT_TRUE(Eventually([&] { return channel->GetState(false) != GRPC_CHANNEL_READY; }));
  EXPECT_TRUE(Eventually([&] { return GetModel(*stub) == grpc::StatusCode::OK; }))
      << "a new connection takes calls";
}

TEST(GrpcConnectionsTest, FloodOfResetsIsCutOff) {
  GrpcStackOptions options;
  options.grpc.max_streams_per_connection = 1;
  GrpcStack stack(options);
  FrameClient hostile(stack.grpc_server->port());
  EXPECT_TRUE(Eventually([&] {
    std::string frames;
    for (int i = 0; i < 200; ++i)
      frames += hostile.Call(kGetModel, "") + hostile.ResetOf(hostile.stream());
    hostile.ReadAvailable();
    return !hostile.Send(frames);
  }));
  EXPECT_EQ(GetModel(*stack.NewStub()), grpc::StatusCode::OK);
}

TEST(GrpcListenerTest, OneAddressDoesNotHoldAllConnections) {
  auto listener = GrpcListener::Open({.max_connections = 8}).value();
  std::mutex mutex;
  std::vector<int> given;
  listener->Start([&](int fd) {
    const std::lock_guard lock(mutex);
    given.push_back(fd);
  });
  const auto num_given = [&] {
    const std::lock_guard lock(mutex);
    return given.size();
  };
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 7; ++i) clients.push_back(std::make_unique<HttpClient>(listener->port()));
  EXPECT_TRUE(Eventually([&] { return num_given() == 7; }));
  EXPECT_TRUE(HttpClient(listener->port()).AtEnd()) << "it holds its share";
  const HttpClient other(listener->port(), 0, "127.0.0.2");
  EXPECT_TRUE(Eventually([&] { return num_given() == 8; }));
  close(std::exchange(given.front(), -1));
  EXPECT_TRUE(Eventually([&] {
    const HttpClient again(listener->port());
    return num_given() == 9;
  })) << "one of its own is closed";
  listener->Stop();
  for (const int fd : given) close(fd);
}

}  // namespace
}  // namespace diffserve
