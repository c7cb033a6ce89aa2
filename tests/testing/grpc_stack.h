// GrpcStack: a gRPC server on a free port of this process, over a real engine whose executor is the
// fake one, and ways to call it.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "diffserve/v1/inference.grpc.pb.h"
#include "engine/engine.h"
#include "engine/text/output_loop.h"
#include "server/frontend.h"
#include "server/grpc/server.h"
#include "tests/testing/eventually.h"
#include "tests/testing/fake_executor.h"
#include "tests/testing/step_gate.h"
#include "tests/testing/text_fixture.h"

namespace diffserve::testing {

struct GrpcStackOptions {
  EngineOptions engine{.page_size = 16, .num_pages = 4096, .max_model_len = 4096};
  FakeExecutor::Options executor;
  bool hold_steps = false;  // steps() is closed at first
  FrontendOptions frontend;
  GrpcServerOptions server;
  std::string keys;  // text of a key file; empty: none are needed
};

class GrpcStack {
 public:
  explicit GrpcStack(GrpcStackOptions options = {})
      : tokenizer_(LoadTokenizerFixture("byte_bpe")),
        steps_(options.hold_steps ? StepGate::State::kClosed : StepGate::State::kOpen) {
    config_.family = "fake";
    config_.vocab_size = tokenizer_->vocab_size();
    config_.max_positions = options.engine.max_model_len;
    options.frontend.served_model_name = "fake-model";
    options.executor.vocab_size = std::min(options.executor.vocab_size, config_.vocab_size);
    if (!options.keys.empty()) keys_ = ApiKeys::FromText(options.keys, "keys").value();
    engine_ = std::make_unique<Engine>(
        options.engine,
        std::make_unique<FakeExecutor>(options.engine, WithGate(options.executor, steps_)),
        [this](TokenEvent event) { output_->Post(std::move(event)); });
    output_ = std::make_unique<OutputLoop>(
        *tokenizer_, 4096, [this](RequestId id, FinishReason as) { engine_->Cancel(id, as); });
    frontend_ = std::make_unique<Frontend>(options.frontend, config_, *tokenizer_, nullptr,
                                           *engine_, *output_);
    metrics_ = std::make_unique<MetricsExporter>(ServedModelInfo{},
                                                 [this] { return engine_->Snapshot(); });
    Result<std::unique_ptr<GrpcServer>> server = GrpcServer::Start(options.server, *frontend_,
                                                                   keys_, metrics_.get());
    EXPECT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(server).value();
  }
  ~GrpcStack() {
    server_.reset();
    frontend_.reset();
    engine_->Fail("the test is over");  // from here on no event is delivered
    output_.reset();
    steps_.Open();
  }

  std::shared_ptr<grpc::Channel> NewChannel() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
    arguments.SetMaxReceiveMessageSize(64 << 20);
    return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(server_->port()),
                                     grpc::InsecureChannelCredentials(), arguments);
  }
  std::unique_ptr<v1::Inference::Stub> NewStub() const {
    return v1::Inference::NewStub(NewChannel());
  }

  // Waits until the engine holds no request (true). Where steps are held, one may pass at each
  // look: what was cancelled goes.
  bool BecomesIdle() {
    return Eventually([this] {
      const EngineStats stats = engine_->Snapshot();
      if (stats.running == 0 && stats.waiting == 0 && stats.pages_used == 0) return true;
      steps_.Allow(1);
      return false;
    });
  }

  GrpcServer& server() { return *server_; }
  Engine& engine() { return *engine_; }
  EngineStats Stats() const { return engine_->Snapshot(); }
  StepGate& steps() { return steps_; }
  MetricsExporter& metrics() { return *metrics_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  ModelConfig config_;
  ApiKeys keys_;
  StepGate steps_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<OutputLoop> output_;
  std::unique_ptr<Frontend> frontend_;
  std::unique_ptr<MetricsExporter> metrics_;
  std::unique_ptr<GrpcServer> server_;
};

// All that came of one Generate call.
struct Generated {
  grpc::Status status;
  std::string param;  // trailing metadata
  std::vector<v1::GenerateResponse> messages;

  std::vector<int32_t> TokensOf(int choice) const {
    std::vector<int32_t> ids;
    for (const v1::GenerateResponse& m : messages) {
      if (m.has_delta() && m.delta().choice() == choice)
        ids.insert(ids.end(), m.delta().token_ids().begin(), m.delta().token_ids().end());
    }
    return ids;
  }
  std::string TextOf(int choice) const {
    std::string text;
    for (const v1::GenerateResponse& m : messages) {
      if (m.has_delta() && m.delta().choice() == choice) text += m.delta().text();
    }
    return text;
  }
};

inline Generated Finish(grpc::ClientContext& context,
                        grpc::ClientReader<v1::GenerateResponse>& reader) {
  Generated result;
  v1::GenerateResponse message;
  while (reader.Read(&message)) result.messages.push_back(message);
  result.status = reader.Finish();
  const auto param = context.GetServerTrailingMetadata().find("param");
  if (param != context.GetServerTrailingMetadata().end())
    result.param.assign(param->second.data(), param->second.size());
  return result;
}

inline Generated Generate(v1::Inference::Stub& stub, const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  const auto reader = stub.Generate(&context, request);
  return Finish(context, *reader);
}

inline v1::GenerateRequest RequestOf(const std::vector<int32_t>& ids, int max_tokens) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  request.mutable_stopping()->set_max_tokens(max_tokens);
  request.mutable_sampling()->set_temperature(0);
  return request;
}

// Sends one message of bytes to any method and returns the first reply's bytes: for services whose
// messages are not generated here.
inline std::pair<grpc::Status, std::string> CallWithBytes(
    const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
    const std::string& bytes, const std::string& api_key = {}) {
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
