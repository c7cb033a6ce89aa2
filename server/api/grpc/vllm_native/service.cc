// SPDX-License-Identifier: Apache-2.0
#include "server/api/grpc/vllm_native/service.h"

#include <string>

#include "kernels/process/random_bits.h"
#include "server/api/grpc/generate_call.h"
#include "server/api/grpc/unary_call.h"
#include "server/api/grpc/vllm_native/messages.h"
#include "server/api/grpc/wire_request.h"
#include "vllm/control.grpc.pb.h"
#include "vllm/inference.grpc.pb.h"

namespace diffserve {
namespace {

using grpc::internal::CallbackServerStreamingHandler;
using grpc::internal::CallbackUnaryHandler;

template <bool kWhole>
struct NativeGenerateApi {
  using Message = native_v1::GenerateResponse;
  using Answer = NativeAnswer;
  static constexpr const char* kMethod = kWhole ? "vllm.Inference.Generate"
                                                : "vllm.Inference.GenerateStream";
  static Result<NativeRequest> Read(const native_v1::GenerateRequest& message,
                                    const Frontend& frontend) {
    SamplingSpec defaults = frontend.DefaultSampling();
    defaults.temperature = frontend.model_config().default_temperature.value_or(0);
    return FromProto(message, defaults, kWhole);
  }
  static std::unique_ptr<Answer> NewAnswer(const NativeRequest& request, const std::string& /*id*/,
                                           const Tokenizer& /*tokenizer*/) {
    return std::make_unique<Answer>(request);
  }
};

class NativeInferenceService : public native_v1::Inference::Service {
 public:
  explicit NativeInferenceService(CallContext& shared) {
    using Request = WireRequest<native_v1::GenerateRequest>;
    using Whole = GenerateCall<NativeGenerateApi<true>, OneAnswer<native_v1::GenerateResponse>>;
    MarkMethodCallback(kGenerate, new CallbackUnaryHandler<Request, native_v1::GenerateResponse>(
                                      [&shared](auto* context, auto* request, auto* response) {
                                        return Whole::BeginUnary(shared, context, *request,
                                                                 response);
                                      }));
    MarkMethodCallback(kGenerateStream,
                       new CallbackServerStreamingHandler<Request, native_v1::GenerateResponse>(
                           [&shared](auto* context, auto* request) {
                             return GenerateCall<NativeGenerateApi<false>>::Begin(shared, context,
                                                                                  *request);
                           }));
  }

 private:
  enum Method { kGenerate, kGenerateStream };  // in the order of the .proto
};

class NativeControlService : public native_v1::Control::Service {
 public:
  explicit NativeControlService(CallContext& shared) : shared_(shared) {
    Mark<native_v1::GetServerInfoRequest, native_v1::ServerInfo>(
        kGetServerInfo, "vllm.Control.GetServerInfo", [this](const auto&, auto* response, auto&) {
          FillServerInfo(shared_.frontend.engine().options(), instance_id_, *response);
        });
    Mark<native_v1::GetModelInfoRequest, native_v1::ModelInfo>(
        kGetModelInfo, "vllm.Control.GetModelInfo", [this](const auto&, auto* response, auto&) {
          FillModelInfo(shared_.frontend, shared_.options.model_root, *response);
        });
    Mark<native_v1::AbortRequest, native_v1::AbortResponse>(
        kAbort, "vllm.Control.Abort", [this](const auto& request, auto*, const auto& client) {
          for (const std::string& id : request.request_ids()) shared_.frontend.Cancel(client, id);
        });
    Mark<native_v1::GetKvEventSourcesRequest, native_v1::GetKvEventSourcesResponse>(
        kGetKvEventSources, "vllm.Control.GetKvEventSources",
        [this](const auto&, auto* response, auto&) {
          FillKvEventSources(shared_.options.kv_event_source, *response);
        });
  }

 private:
  // In the order of the .proto.
  enum Method { kGetServerInfo, kGetModelInfo, kAbort, kGetKvEventSources };

  // gRPC takes ownership of the handlers.
  template <typename Request, typename Response, typename Body>
  void Mark(Method method, const char* name, const Body& body) {
    MarkMethodCallback(
        method, new CallbackUnaryHandler<WireRequest<Request>, Response>(
                    [this, name, body](auto* context, auto* request, auto* response) {
                      return AnswerUnary(name, shared_, context, request->status,
                                         CallAccess::kWithKey, [&](const std::string& client) {
                                           body(request->message, response, client);
                                           return Status();
                                         });
                    }));
  }

  CallContext& shared_;
  const std::string instance_id_ = std::to_string(RandomBits());
};

}  // namespace

std::unique_ptr<grpc::Service> NewNativeInferenceService(CallContext& shared) {
  return std::make_unique<NativeInferenceService>(shared);
}

std::unique_ptr<grpc::Service> NewNativeControlService(CallContext& shared) {
  return std::make_unique<NativeControlService>(shared);
}

}  // namespace diffserve
