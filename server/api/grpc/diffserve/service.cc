// SPDX-License-Identifier: Apache-2.0
#include "server/api/grpc/diffserve/service.h"

#include <string>
#include <utility>
#include <vector>

#include "diffserve/v1/inference.grpc.pb.h"
#include "kernels/base/refusal.h"
#include "server/api/grpc/diffserve/answer_messages.h"
#include "server/api/grpc/diffserve/attention_stream.h"
#include "server/api/grpc/diffserve/messages.h"
#include "server/api/grpc/embed_call.h"
#include "server/api/grpc/generate_call.h"
#include "server/api/grpc/unary_call.h"
#include "server/api/grpc/wire_request.h"
#include "server/serving/request/request_checks.h"

namespace diffserve {
namespace {

using grpc::internal::CallbackServerStreamingHandler;
using grpc::internal::CallbackUnaryHandler;

struct GenerateApi {
  using Message = v1::GenerateResponse;
  using Answer = AnswerMessages;
  static constexpr char kMethod[] = "Generate";
  static Result<AnswerRequest> Read(const v1::GenerateRequest& message, const Frontend& frontend) {
    return FromProto(message, frontend.options(), frontend.DefaultSampling());
  }
  static std::unique_ptr<Answer> NewAnswer(const AnswerRequest& request, const std::string& id,
                                           const Tokenizer& tokenizer) {
    return std::make_unique<Answer>(request, id, tokenizer);
  }
};

struct EmbedApi {
  using Message = v1::EmbedResponse;
  static constexpr char kMethod[] = "Embed";
  static void Fill(const StatePools& pools, const Usage& usage, Message& out) {
    FillEmbeddings(pools, usage, out);
  }
};

// These methods are registered by hand, because their requests are scanned before they are parsed.
class InferenceService : public v1::Inference::Service {
 public:
  explicit InferenceService(CallContext& shared) : shared_(shared) {
    MarkMethodCallback(
        kGenerate,
        new CallbackServerStreamingHandler<WireRequest<v1::GenerateRequest>, v1::GenerateResponse>(
            [this](auto* context, auto* request) {
              return GenerateCall<GenerateApi>::Begin(shared_, context, *request);
            }));
    MarkMethodCallback(kAttention,
                       new CallbackServerStreamingHandler<WireRequest<v1::AttentionRequest>,
                                                          v1::AttentionResponse>(
                           [this](auto* context, auto* request) {
                             return BeginAttention(shared_, context, *request);
                           }));
    Mark(kTokenize, &InferenceService::TokenizeCall);
    Mark(kDetokenize, &InferenceService::DetokenizeCall);
    Mark(kGetModel, &InferenceService::GetModelCall);
    Mark(kCancel, &InferenceService::CancelCall);
    Mark(kEmbed, &InferenceService::BeginEmbed);
  }

 private:
  // In the order of the .proto.
  enum Method { kGenerate, kTokenize, kDetokenize, kGetModel, kEmbed, kAttention, kCancel };
  template <typename Request, typename Response>
  using Unary = grpc::ServerUnaryReactor* (InferenceService::*)(grpc::CallbackServerContext*,
                                                                const WireRequest<Request>&,
                                                                Response*);

  // gRPC takes ownership of the method's handler.
  template <typename Request, typename Response>
  void Mark(Method method, Unary<Request, Response> handler) {
    MarkMethodCallback(method, new CallbackUnaryHandler<WireRequest<Request>, Response>(
                                   [this, handler](auto* context, auto* request, auto* response) {
                                     return (this->*handler)(context, *request, response);
                                   }));
  }

  grpc::ServerUnaryReactor* TokenizeCall(grpc::CallbackServerContext* context,
                                         const WireRequest<v1::TokenizeRequest>& request,
                                         v1::TokenizeResponse* response) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const CallRecord record("Tokenize", shared_.watch, context);
    const v1::TokenizeRequest& message = request.message;
    Status status = record.access().ok() ? request.status : record.access();
    if (status.ok()) {
      Result<Prompt> prompt = diffserve::FromProto(message);
      const bool add_special_tokens = message.has_text() && (!message.has_add_special_tokens() ||
                                                             message.add_special_tokens());
      // The call lives until Finish, which the text thread makes.
      status = prompt.ok()
                   ? shared_.frontend.Tokenize(
                         record.client(), std::move(prompt).value(),
                         {add_special_tokens, {.prompt = "text"}},
                         [this, record, response, reactor](Result<std::vector<int32_t>> ids) {
                           if (ids.ok()) response->mutable_ids()->Add(ids->begin(), ids->end());
                           End(record, ids.ok() ? Status() : ids.status(), reactor);
                         })
                   : prompt.status();
    }
    if (!status.ok()) End(record, status, reactor);
    return reactor;
  }

  grpc::ServerUnaryReactor* DetokenizeCall(grpc::CallbackServerContext* context,
                                           const WireRequest<v1::DetokenizeRequest>& request,
                                           v1::DetokenizeResponse* response) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const CallRecord record("Detokenize", shared_.watch, context);
    const auto& ids = request.message.ids();
    Status status = record.access().ok() ? request.status : record.access();
    if (status.ok() && static_cast<size_t>(ids.size()) > kMaxDetokenizeIds) {
      status = TooMany("ids", static_cast<size_t>(ids.size()), "entries", kMaxDetokenizeIds);
    }
    if (status.ok()) {
      status = shared_.frontend.Detokenize(
          record.client(), {ids.begin(), ids.end()}, "ids",
          [this, record, response, reactor](Result<std::string> text) {
            if (text.ok()) response->set_text(*text);
            End(record, text.ok() ? Status() : text.status(), reactor);
          });
    }
    if (!status.ok()) End(record, status, reactor);
    return reactor;
  }

  grpc::ServerUnaryReactor* GetModelCall(grpc::CallbackServerContext* context,
                                         const WireRequest<v1::GetModelRequest>& request,
                                         v1::GetModelResponse* response) {
    return Answer("GetModel", context, request.status, [&](const std::string&) -> Status {
      FillModel(shared_.frontend, shared_.frontend.engine().options(), *response);
      return {};
    });
  }

  grpc::ServerUnaryReactor* BeginEmbed(grpc::CallbackServerContext* context,
                                       const WireRequest<v1::EmbedRequest>& request,
                                       v1::EmbedResponse* response) {
    return EmbedCall<EmbedApi>::Begin(shared_, context, request.status, response, [&] {
      return FromProto(request.message, shared_.frontend.DefaultSampling());
    });
  }

  grpc::ServerUnaryReactor* CancelCall(grpc::CallbackServerContext* context,
                                       const WireRequest<v1::CancelRequest>& request,
                                       v1::CancelResponse*) {
    return Answer("Cancel", context, request.status, [&](const std::string& client) -> Status {
      if (shared_.frontend.Cancel(client, request.message.request_id())) return {};
      return Status(StatusCode::kNotFound, "no request with this request_id is running",
                    "request_id");
    });
  }

  void End(const CallRecord& record, const Status& status, grpc::ServerUnaryReactor* reactor) {
    EndUnary(shared_, record, status, reactor);
  }

  template <typename Body>
  grpc::ServerUnaryReactor* Answer(const char* method, grpc::CallbackServerContext* context,
                                   const Status& request, const Body& body) {
    return AnswerUnary(method, shared_, context, request, CallAccess::kWithKey, body);
  }

  CallContext& shared_;
};

}  // namespace

std::unique_ptr<grpc::Service> NewInferenceService(CallContext& shared) {
  return std::make_unique<InferenceService>(shared);
}

}  // namespace diffserve
