// SPDX-License-Identifier: Apache-2.0
#include "server/api/grpc/vllm/service.h"

#include <chrono>
#include <memory>
#include <string>

#include "server/api/grpc/embed_call.h"
#include "server/api/grpc/generate_call.h"
#include "server/api/grpc/stream_call.h"
#include "server/api/grpc/unary_call.h"
#include "server/api/grpc/vllm/kv_event_stream.h"
#include "server/api/grpc/vllm/messages.h"
#include "server/api/grpc/wire_request.h"
#include "vllm/grpc/engine/vllm_engine.grpc.pb.h"

namespace diffserve {
namespace {

using grpc::internal::CallbackServerStreamingHandler;
using grpc::internal::CallbackUnaryHandler;
using std::chrono::steady_clock;

struct VllmGenerateApi {
  using Message = vllm_v1::GenerateResponse;
  using Answer = VllmAnswer;
  static constexpr char kMethod[] = "VllmEngine.Generate";
  static Result<VllmRequest> Read(const vllm_v1::GenerateRequest& message,
                                  const Frontend& frontend) {
    return FromProto(message, frontend.DefaultSampling());
  }
  static std::unique_ptr<Answer> NewAnswer(const VllmRequest& request, const std::string& /*id*/,
                                           const Tokenizer& /*tokenizer*/) {
    return std::make_unique<Answer>(request);
  }
};

struct VllmEmbedApi {
  using Message = vllm_v1::EmbedResponse;
  static constexpr char kMethod[] = "VllmEngine.Embed";
  static void Fill(const StatePools& pools, const Usage& usage, Message& out) {
    FillEmbedding(pools, usage, out);
  }
};

// A stream that this server does not have.
template <typename Message>
class UnofferedCall : public StreamCall<Message> {
  using Base = StreamCall<Message>;

 public:
  static auto* Begin(CallContext& shared, grpc::CallbackServerContext* context,
                     const Status& received, const char* why) {
    return Base::template Begin<UnofferedCall>(shared, context, received, [why](UnofferedCall&) {
      return Status(StatusCode::kUnimplemented, why);
    });
  }

  UnofferedCall(CallContext& shared, grpc::CallbackServerContext* context)
      : Base("VllmEngine.Unoffered", shared, context) {}

 private:
  bool TakeNext(Message*) override { return false; }
  void Cancel() override {}
  void Close() override {}
};

void FillHealth(bool serving, vllm_v1::HealthCheckResponse* response) {
  response->set_healthy(serving);
  response->set_message(serving ? "serving" : "not serving");
}

class VllmService : public vllm_v1::VllmEngine::Service {
 public:
  explicit VllmService(CallContext& shared) : shared_(shared) {
    MarkMethodCallback(
        kGenerate, new CallbackServerStreamingHandler<WireRequest<vllm_v1::GenerateRequest>,
                                                      vllm_v1::GenerateResponse>(
                       [this](auto* context, auto* request) {
                         return GenerateCall<VllmGenerateApi>::Begin(shared_, context, *request);
                       }));
    MarkMethodCallback(
        kEmbed,
        new CallbackUnaryHandler<WireRequest<vllm_v1::EmbedRequest>, vllm_v1::EmbedResponse>(
            [this](auto* context, auto* request, auto* response) {
              return EmbedCall<VllmEmbedApi>::Begin(
                  shared_, context, request->status, response,
                  [&] { return FromProto(request->message, shared_.frontend.DefaultSampling()); });
            }));
    MarkAnswers();
    MarkUnoffered<smg::grpc::common::GetTokenizerRequest, smg::grpc::common::GetTokenizerChunk>(
        kGetTokenizer,
        "GetTokenizer is not supported by this server; the tokenizer's files are those of the "
        "model directory, and GET /tokenizer_info returns their settings");
    MarkMethodCallback(
        kSubscribeKvEvents,
        new CallbackServerStreamingHandler<WireRequest<smg::grpc::common::SubscribeKvEventsRequest>,
                                           smg::grpc::common::KvEventBatch>(
            [this](auto* context, auto* request) {
              return BeginKvEvents(shared_, context, *request);
            }));
  }

 private:
  enum Method {  // in the order of the .proto
    kGenerate,
    kEmbed,
    kHealthCheck,
    kAbort,
    kGetModelInfo,
    kGetServerInfo,
    kGetLoads,
    kGetTokenizer,
    kSubscribeKvEvents
  };

  // The calls that are answered at once.
  void MarkAnswers() {
    Mark<vllm_v1::HealthCheckRequest, vllm_v1::HealthCheckResponse>(
        kHealthCheck, "VllmEngine.HealthCheck", CallAccess::kForAll,
        [this](const auto&, auto* response, const auto&) {
          FillHealth(shared_.serving, response);
          return Status();
        });
    Mark<vllm_v1::AbortRequest, vllm_v1::AbortResponse>(
        kAbort, "VllmEngine.Abort", CallAccess::kWithKey,
        [this](const auto& request, auto*, const auto& client) {
          for (const std::string& id : request.request_ids()) shared_.frontend.Cancel(client, id);
          return Status();
        });
    Mark<vllm_v1::GetModelInfoRequest, vllm_v1::GetModelInfoResponse>(
        kGetModelInfo, "VllmEngine.GetModelInfo", CallAccess::kWithKey,
        [this](const auto&, auto* response, const auto&) {
          FillModelInfo(shared_.frontend, shared_.options.model_root,
                        shared_.frontend.engine().options().max_model_len, *response);
          return Status();
        });
    Mark<vllm_v1::GetServerInfoRequest, vllm_v1::GetServerInfoResponse>(
        kGetServerInfo, "VllmEngine.GetServerInfo", CallAccess::kWithKey,
        [this](const auto&, auto* response, const auto&) {
          FillServerInfo(shared_.frontend.engine().Snapshot(), steady_clock::now() - begin_,
                         *response);
          return Status();
        });
    Mark<vllm_v1::GetLoadsRequest, vllm_v1::GetLoadsResponse>(
        kGetLoads, "VllmEngine.GetLoads", CallAccess::kWithKey,
        [this](const auto& request, auto* response, const auto&) {
          Engine& engine = shared_.frontend.engine();
          return FillLoads(request, engine.Snapshot(), engine.options(), *response);
        });
  }

  // gRPC takes ownership of the handlers.
  template <typename Request, typename Response, typename Body>
  void Mark(Method method, const char* name, CallAccess access, const Body& body) {
    MarkMethodCallback(
        method, new CallbackUnaryHandler<WireRequest<Request>, Response>(
                    [this, name, access, body](auto* context, auto* request, auto* response) {
                      return AnswerUnary(name, shared_, context, request->status, access,
                                         [&](const std::string& client) {
                                           return body(request->message, response, client);
                                         });
                    }));
  }

  template <typename Request, typename Response>
  void MarkUnoffered(Method method, const char* why) {
    MarkMethodCallback(method, new CallbackServerStreamingHandler<WireRequest<Request>, Response>(
                                   [this, why](auto* context, auto* request) {
                                     return UnofferedCall<Response>::Begin(shared_, context,
                                                                           request->status, why);
                                   }));
  }

  CallContext& shared_;
  const steady_clock::time_point begin_ = steady_clock::now();
};

}  // namespace

std::unique_ptr<grpc::Service> NewVllmService(CallContext& shared) {
  return std::make_unique<VllmService>(shared);
}

std::optional<std::string> VllmHealthReply(std::string_view method, bool serving) {
  if (method != "HealthCheck") return std::nullopt;
  vllm_v1::HealthCheckResponse health;
  FillHealth(serving, &health);
  return health.SerializeAsString();
}

}  // namespace diffserve
