// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/server/grpc_stack.h"

#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace diffserve::testing {

GrpcStackOptions::GrpcStackOptions() {
  engine = {.page_size = 16, .num_pages = 4096, .max_model_len = 4096};
  config.family = "fake";
  config.max_positions = 4096;
  frontend.names.name = "fake-model";
  with_template = false;
}

std::shared_ptr<grpc::Channel> GrpcStack::NewChannel() const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  arguments.SetMaxReceiveMessageSize(64 << 20);
  return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(grpc_server->port()),
                                   grpc::InsecureChannelCredentials(), arguments);
}

std::unique_ptr<v1::Inference::Stub> GrpcStack::NewStub() const {
  return v1::Inference::NewStub(NewChannel());
}

GrpcStackOptions WithHeldSteps() {
  GrpcStackOptions options;
  options.hold_steps = true;
  return options;
}

std::vector<int32_t> ExpectedTokens(const GrpcStack& stack, const std::vector<int32_t>& prompt,
                                    int count) {
  Request request;
  request.prompt = prompt;
  request.max_tokens = count;
  request.sampling.temperature = 0;
  return FakeExecutor::Continue(request, std::min(256, stack.tokenizer->vocab_size()));
}

bool CallIsCounted(const GrpcStack& stack, const std::string& method, int code) {
  const std::string sample = "diffserve_grpc_requests_total{method=\"" + method + "\",code=\"" +
                             std::to_string(code) + "\"} 1";
  return Eventually([&] { return stack.metrics->Render().find(sample) != std::string::npos; });
}

std::vector<int32_t> Generated::TokensOf(int choice) const {
  std::vector<int32_t> ids;
  for (const v1::GenerateResponse& m : messages) {
    if (m.has_delta() && m.delta().choice() == choice)
      ids.insert(ids.end(), m.delta().token_ids().begin(), m.delta().token_ids().end());
  }
  return ids;
}

std::string Generated::TextOf(int choice) const {
  std::string text;
  for (const v1::GenerateResponse& m : messages) {
    if (m.has_delta() && m.delta().choice() == choice) text += m.delta().text();
  }
  return text;
}

std::string TrailerOf(const grpc::ClientContext& context, const char* name) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find(name);
  return found == trailers.end() ? "" : std::string(found->second.data(), found->second.size());
}

Generated Finish(grpc::ClientContext& context, grpc::ClientReader<v1::GenerateResponse>& reader) {
  Generated result;
  v1::GenerateResponse message;
  while (reader.Read(&message)) result.messages.push_back(message);
  result.status = reader.Finish();
  result.param = TrailerOf(context, "param");
  result.retry_after = TrailerOf(context, "retry-after");
  return result;
}

Generated Generate(v1::Inference::Stub& stub, const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  const auto reader = stub.Generate(&context, request);
  return Finish(context, *reader);
}

v1::GenerateRequest RequestOf(const std::vector<int32_t>& ids, int max_tokens) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  request.mutable_stopping()->set_max_tokens(max_tokens);
  request.mutable_sampling()->set_temperature(0);
  return request;
}

std::pair<grpc::Status, std::string> CallWithBytes(const std::shared_ptr<grpc::Channel>& channel,
                                                   const std::string& method,
                                                   const std::string& bytes,
                                                   const std::string& api_key) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  if (!api_key.empty()) context.AddMetadata("authorization", "Bearer " + api_key);
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(channel);
  const auto stream = stub.PrepareCall(&context, method, &queue);
  const auto wait = [&] {
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return ok;
  };
  stream->StartCall(nullptr);
  wait();
  const grpc::Slice slice(bytes);
  stream->Write(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions().set_last_message(), nullptr);
  wait();
  grpc::ByteBuffer reply;
  stream->Read(&reply, nullptr);
  std::string text;
  if (wait()) {
    std::vector<grpc::Slice> slices;
    if (reply.Dump(&slices).ok()) {
      for (const grpc::Slice& s : slices)
        text.append(reinterpret_cast<const char*>(s.begin()), s.size());
    }
  }
  grpc::Status status;
  stream->Finish(&status, nullptr);
  wait();
  queue.Shutdown();
  return {status, text};
}

}  // namespace diffserve::testing
