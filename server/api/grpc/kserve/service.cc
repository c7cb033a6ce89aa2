// SPDX-License-Identifier: Apache-2.0
#include "server/api/grpc/kserve/service.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "inference/grpc_service.grpc.pb.h"
#include "server/api/grpc/kserve/messages.h"
#include "server/api/grpc/stream_call.h"
#include "server/api/grpc/unary_call.h"
#include "server/api/grpc/wire_request.h"
#include "server/serving/build_version.h"

namespace diffserve {
namespace {

using std::chrono::steady_clock;
using InferMessage = WireRequest<inference::ModelInferRequest>;

// One running request: its response stream of the Frontend and the conversion of its events.
// Thread safety: one thread at a time, except Abandon.
class InferRun {
 public:
  InferRun(Frontend& frontend, InferShape shape, std::function<void()> notify)
      : frontend_(frontend),
        answer_(std::move(shape)),
        stream_(std::make_shared<ResponseStream>(frontend.options().max_stream_bytes,
                                                 std::move(notify))) {}

  Status Start(GenerateRequest request) {
    return Assign(&response_, frontend_.Generate(std::move(request), stream_));
  }

  // False if there is no response now.
  bool TakeNext(inference::ModelInferResponse* out) {
    while (!answer_.done()) {
      const std::optional<ResponseEvent> event = stream_->TryPop();
      if (!event) return false;
      if (answer_.Take(*event, out)) return true;
    }
    return false;
  }
  const InferAnswer& answer() const { return answer_; }

  void Close() { stream_->Close(); }
  void Abandon() {
    Close();
    frontend_.Abandon(response_);
  }

 private:
  Frontend& frontend_;
  InferAnswer answer_;
  const std::shared_ptr<ResponseStream> stream_;
  ResponseId response_ = 0;
};

// Shared by both kinds of answering call: one run at a time.
template <typename Message, typename Reactor>
class InferCall : public StreamCall<Message, Reactor> {
 protected:
  using StreamCall<Message, Reactor>::StreamCall;

  // `streams`: as in FromProto. Call before any reaction can run, or under the lock.
  Status StartRun(const InferMessage& received, bool streams) {
    CallContext& shared = this->shared_;
    DS_RETURN_IF_ERROR(received.status);
    Result<InferRequest> request = FromProto(received.message, shared.frontend.options(),
                                             shared.frontend.DefaultSampling(), streams);
    if (!request.ok()) return request.status();
    DS_RETURN_IF_ERROR(this->TakeRequestId(request->shape.id));
    GenerateRequest& generate = request->generate;
    generate.request_id = this->request_id_;
    generate.client = this->record_.client();
    generate.deadline = this->deadline();
    if (request->timeout) {
      const steady_clock::time_point end = steady_clock::now() + *request->timeout;
      generate.deadline = std::min(end, generate.deadline.value_or(end));
    }
    run_ = std::make_shared<InferRun>(shared.frontend, std::move(request->shape),
                                      [call = this->weak_self()] { InferCall::Wake(call); });
    return run_->Start(std::move(generate));  // events may come at once
  }

  void Cancel() override {
    if (const std::shared_ptr<InferRun> run = LockedRun()) run->Abandon();
  }
  void Close() override {
    if (const std::shared_ptr<InferRun> run = LockedRun()) run->Close();
  }

  std::shared_ptr<InferRun> run_;  // mutex_ guards it once reactions can run

 private:
  std::shared_ptr<InferRun> LockedRun() {
    std::lock_guard lock(this->mutex_);
    return run_;
  }
};

class ModelInferCall
    : public InferCall<inference::ModelInferResponse, OneAnswer<inference::ModelInferResponse>> {
 public:
  static grpc::ServerUnaryReactor* Begin(CallContext& shared, grpc::CallbackServerContext* context,
                                         const InferMessage& request,
                                         inference::ModelInferResponse* response) {
    return StreamCall::Begin<ModelInferCall>(shared, context, Status(), [&](ModelInferCall& call) {
      call.answer_ = response;
      return call.StartRun(request, /*streams=*/false);
    });
  }

  ModelInferCall(CallContext& shared, grpc::CallbackServerContext* context)
      : InferCall("ModelInfer", shared, context) {}

 private:
  bool TakeNext(inference::ModelInferResponse* message) override {
    const bool taken = run_->TakeNext(message);
    if (run_->answer().done()) done_ = run_->answer().status();
    return taken;
  }
};

// Reads the next request when the last one is answered.
class ModelStreamInferCall
    : public InferCall<inference::ModelStreamInferResponse,
                       grpc::ServerBidiReactor<InferMessage, inference::ModelStreamInferResponse>> {
 public:
  static auto* Begin(CallContext& shared, grpc::CallbackServerContext* context) {
    return StreamCall::Begin<ModelStreamInferCall>(shared, context, Status(),
                                                   [](ModelStreamInferCall& call) {
                                                     call.Read();
                                                     return Status();
                                                   });
  }

  ModelStreamInferCall(CallContext& shared, grpc::CallbackServerContext* context)
      : InferCall("ModelStreamInfer", shared, context) {}

 private:
  enum class State { kReading, kReceived, kAnswering, kAnswered };

  void Read() { StartRead(&request_); }

  void OnReadDone(bool ok) override {
    {
      std::lock_guard lock(mutex_);
      if (ok) state_ = State::kReceived;
      // A call that was cut off ends by OnCancel.
      if (!ok && !context_->IsCancelled()) done_ = Status();
    }
    Advance();
  }

  bool TakeNext(inference::ModelStreamInferResponse* message) override {
    if (state_ == State::kReceived) {
      state_ = State::kAnswering;
      const Status started = StartRun(request_, /*streams=*/true);
      if (!started.ok()) return Refuse(started, message);
    }
    if (state_ != State::kAnswering) return false;
    message->Clear();
    const bool taken = run_->TakeNext(message->mutable_infer_response());
    if (!run_->answer().done()) return taken;
    if (!taken) return Refuse(run_->answer().status(), message);
    state_ = State::kAnswered;
    run_.reset();
    return true;
  }

  bool Refuse(const Status& error, inference::ModelStreamInferResponse* message) {
    FillError(error, request_.status.ok() ? request_.message.id() : "", *message);
    state_ = State::kAnswered;
    run_.reset();
    return true;
  }

  void Written() override {
    {
      std::lock_guard lock(mutex_);
      if (state_ != State::kAnswered) return;
      state_ = State::kReading;
    }
    Read();
  }

  State state_ = State::kReading;  // mutex_ guards it once reactions can run
  InferMessage request_;           // gRPC's while it reads
};

void FillLive(inference::ServerLiveResponse* response) { response->set_live(true); }
void FillReady(bool serving, inference::ServerReadyResponse* response) {
  response->set_ready(serving);
}

class KserveService : public inference::GRPCInferenceService::Service {
 public:
  explicit KserveService(CallContext& shared) : shared_(shared) {
    Mark<inference::ServerLiveRequest, inference::ServerLiveResponse>(
        kServerLive, "ServerLive", CallAccess::kForAll, [](const auto&, auto* response) {
          FillLive(response);
          return Status();
        });
    Mark<inference::ServerReadyRequest, inference::ServerReadyResponse>(
        kServerReady, "ServerReady", CallAccess::kForAll, [this](const auto&, auto* response) {
          FillReady(shared_.serving, response);
          return Status();
        });
    Mark<inference::ModelReadyRequest, inference::ModelReadyResponse>(
        kModelReady, "ModelReady", CallAccess::kWithKey,
        [this](const auto& request, auto* response) {
          response->set_ready(shared_.serving);
          return CheckModelName(request.name(), request.version(), shared_.frontend.options());
        });
    Mark<inference::ServerMetadataRequest, inference::ServerMetadataResponse>(
        kServerMetadata, "ServerMetadata", CallAccess::kWithKey, [](const auto&, auto* response) {
          response->set_name("diffserve");
          response->set_version(std::string(BuildVersion()));
          return Status();
        });
    Mark<inference::ModelMetadataRequest, inference::ModelMetadataResponse>(
        kModelMetadata, "ModelMetadata", CallAccess::kWithKey,
        [this](const auto& request, auto* response) {
          DS_RETURN_IF_ERROR(
              CheckModelName(request.name(), request.version(), shared_.frontend.options()));
          FillMetadata(shared_.frontend, *response);
          return Status();
        });
    MarkMethodCallback(
        kModelInfer,
        new grpc::internal::CallbackUnaryHandler<InferMessage, inference::ModelInferResponse>(
            [this](auto* context, auto* request, auto* response) {
              return ModelInferCall::Begin(shared_, context, *request, response);
            }));
    MarkMethodCallback(
        kModelStreamInfer,
        new grpc::internal::CallbackBidiHandler<InferMessage, inference::ModelStreamInferResponse>(
            [this](auto* context) { return ModelStreamInferCall::Begin(shared_, context); }));
  }

 private:
  enum Method {  // in the order of the .proto
    kServerLive,
    kServerReady,
    kModelReady,
    kServerMetadata,
    kModelMetadata,
    kModelInfer,
    kModelStreamInfer
  };

  // A method that `body(request, response)` answers at once. gRPC takes ownership of the handler.
  template <typename Request, typename Response, typename Body>
  void Mark(Method method, const char* name, CallAccess access, const Body& body) {
    MarkMethodCallback(
        method, new grpc::internal::CallbackUnaryHandler<WireRequest<Request>, Response>(
                    [this, name, access, body](auto* context, auto* request, auto* response) {
                      return AnswerUnary(name, shared_, context, request->status, access,
                                         [&](const std::string& /*client*/) {
                                           return body(request->message, response);
                                         });
                    }));
  }

  CallContext& shared_;
};

}  // namespace

std::unique_ptr<grpc::Service> NewKserveService(CallContext& shared) {
  return std::make_unique<KserveService>(shared);
}

std::optional<std::string> KserveHealthReply(std::string_view method, bool serving) {
  if (method == "ServerLive") {
    inference::ServerLiveResponse live;
    FillLive(&live);
    return live.SerializeAsString();
  }
  if (method != "ServerReady") return std::nullopt;
  inference::ServerReadyResponse ready;
  FillReady(serving, &ready);
  return ready.SerializeAsString();
}

}  // namespace diffserve
