// SPDX-License-Identifier: Apache-2.0
#include "server/api/grpc/server.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_posix.h>

#include <atomic>
#include <utility>

#include "diffserve/v1/inference.grpc.pb.h"
#include "grpc/health/v1/health.pb.h"
#include "kernels/base/check.h"
#include "kernels/base/log.h"
#include "server/api/grpc/arrived_calls.h"
#include "server/api/grpc/call_context.h"
#include "server/api/grpc/call_watch.h"
#include "server/api/grpc/diffserve/answer_messages.h"
#include "server/api/grpc/diffserve/attention_stream.h"
#include "server/api/grpc/diffserve/messages.h"
#include "server/api/grpc/embed_call.h"
#include "server/api/grpc/generate_call.h"
#include "server/api/grpc/kserve/service.h"
#include "server/api/grpc/listener.h"
#include "server/api/grpc/unary_call.h"
#include "server/api/grpc/vllm/service.h"
#include "server/api/grpc/wire_request.h"
#include "server/serving/request/request_checks.h"

namespace diffserve {
namespace {

using std::chrono::steady_clock;
using std::chrono::system_clock;

constexpr char kServiceName[] = "diffserve.v1.Inference";

using grpc::internal::CallbackServerStreamingHandler;
using grpc::internal::CallbackUnaryHandler;

struct GenerateApi {
  using Message = v1::GenerateResponse;
  using Answer = AnswerMessages;
  static constexpr char kMethod[] = "Generate";
  static std::unique_ptr<Answer> NewAnswer(const AnswerRequest& request, const std::string& id,
                                           const Tokenizer& tokenizer) {
    return std::make_unique<Answer>(request, id, tokenizer);
  }
};

struct EmbedApi {
  using Message = v1::EmbedResponse;
  static constexpr char kMethod[] = "Embed";
  static constexpr char kInput[] = "inputs";
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
    const CallRecord record("Tokenize", shared_.api_keys, context);
    const v1::TokenizeRequest& message = request.message;
    Status status = record.access().ok() ? request.status : record.access();
    if (status.ok()) {
      Result<Prompt> prompt = FromProto(message, shared_.frontend.options());
      const bool add_special_tokens = message.has_text() && (!message.has_add_special_tokens() ||
                                                             message.add_special_tokens());
      // The call lives until Finish, which the text thread makes.
      status = prompt.ok()
                   ? shared_.frontend.Tokenize(
                         record.client(), std::move(prompt).value(), add_special_tokens,
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
    const CallRecord record("Detokenize", shared_.api_keys, context);
    const auto& ids = request.message.ids();
    Status status = record.access().ok() ? request.status : record.access();
    if (status.ok() && static_cast<size_t>(ids.size()) > kMaxDetokenizeIds) {
      status = InvalidArgument("ids has " + std::to_string(ids.size()) + " entries; at most " +
                                   std::to_string(kMaxDetokenizeIds) + " are allowed",
                               "ids");
    }
    if (status.ok()) {
      status = shared_.frontend.Detokenize(
          record.client(), {ids.begin(), ids.end()},
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
    return Answer("GetModel", context, request.status, [&]() -> Status {
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
    return Answer("Cancel", context, request.status, [&]() -> Status {
      if (shared_.frontend.Cancel(request.message.request_id())) return {};
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

// gRPC logs an error for each misuse by a client. More than one line per second is logged only with
// --log-level debug.
void LogFromGrpc(gpr_log_func_args* args) {
  static std::atomic<int64_t> last_second{-1};
  const int64_t second = std::chrono::duration_cast<std::chrono::seconds>(
                             steady_clock::now().time_since_epoch())
                             .count();
  const bool shown = args->severity == GPR_LOG_SEVERITY_ERROR &&
                     last_second.exchange(second) != second;
  Log(shown ? LogLevel::kWarning : LogLevel::kDebug, "grpc", {{"message", args->message}});
}

// protobuf by itself would write to stderr, and block on its reader, whenever a client sends text
// that is not UTF-8. The call's answer reports that error.
void LogFromProtobuf(google::protobuf::LogLevel, const char*, int, const std::string& message) {
  Log(LogLevel::kDebug, "protobuf", {{"message", message}});
}

void Configure(const GrpcServerOptions& options, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(options.max_receive_bytes);
  builder.SetMaxSendMessageSize(options.max_send_bytes);
  // A compressed request could expand beyond every limit of request size.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.SetResourceQuota(grpc::ResourceQuota("diffserve")
                               .Resize(options.memory_quota_bytes)
                               .SetMaxThreads(options.max_sync_threads));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams_per_connection);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, options.max_metadata_bytes);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, options.keepalive_time_ms);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, options.keepalive_timeout_ms);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             options.min_client_ping_interval_ms);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, options.max_ping_strikes);
}

}  // namespace

struct GrpcServer::Impl {
  Impl(Frontend& frontend, const ApiKeys& keys, MetricsExporter* metrics,
       const GrpcServerOptions& options)
      : watch({options.max_excess_cuts, options.max_streams_per_connection,
               options.max_reflection_streams},
              keys),
        shared(frontend, keys, metrics, options),
        service(shared),
        kserve(NewKserveService(shared)),
        vllm(NewVllmService(shared)) {}

  CallWatch watch;
  CallContext shared;
  InferenceService service;
  const std::unique_ptr<grpc::Service> kserve, vllm;
  grpc::CallbackGenericService unknown_methods;  // answers UNIMPLEMENTED; so they are watched too
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<GrpcListener> listener;
};

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcServer::~GrpcServer() {
  if (impl_->shared.metrics != nullptr) impl_->shared.metrics->WatchGrpc(nullptr);
  Shutdown(steady_clock::now());
}

Result<std::unique_ptr<GrpcServer>> GrpcServer::Start(const GrpcServerOptions& options,
                                                      Frontend& frontend, const ApiKeys& api_keys,
                                                      MetricsExporter* metrics) {
  gpr_set_log_function(&LogFromGrpc);
  google::protobuf::SetLogHandler(&LogFromProtobuf);
  grpc::EnableDefaultHealthCheckService(true);
  if (options.reflection) {
    // Reflection describes the services that are linked in.
    grpc::health::v1::HealthCheckRequest::descriptor();
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  }

  Result<std::unique_ptr<GrpcListener>> listener = GrpcListener::Open(
      {.host = options.host, .port = options.port});
  if (!listener.ok()) return listener.status();
  auto impl = std::make_unique<Impl>(frontend, api_keys, metrics, options);
  impl->listener = std::move(listener).value();
  grpc::ServerBuilder builder;
  Configure(options, builder);
  builder.RegisterService(&impl->service);
  builder.RegisterService(impl->kserve.get());
  builder.RegisterService(impl->vllm.get());
  builder.RegisterCallbackGenericService(&impl->unknown_methods);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(impl->watch.NewFactory());
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr) return Status(StatusCode::kInternal, "gRPC did not start");
  if (metrics != nullptr) {
    metrics->WatchGrpc([id = NewestGrpcServer(), &watch = impl->watch] {
      // A call that begins in between has arrived before, so arrived >= begun.
      const int64_t begun = watch.num_begun();
      return GrpcCallCounts{NumArrivedCalls(id), begun};
    });
  }
  impl->listener->Start([server = impl->server.get(), &watch = impl->watch](int fd) {
    watch.Opened(fd);
    grpc::AddInsecureChannelFromFd(server, fd);
  });
  auto server = std::unique_ptr<GrpcServer>(new GrpcServer(std::move(impl)));
  server->SetServing(true);
  return server;
}

int GrpcServer::port() const { return impl_->listener->port(); }

void GrpcServer::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* health = impl_->server->GetHealthCheckService();
  health->SetServingStatus("", serving);
  health->SetServingStatus(kServiceName, serving);
  health->SetServingStatus(kKserveServiceName, serving);
  health->SetServingStatus(kVllmServiceName, serving);
  impl_->shared.serving.store(serving);
}

void GrpcServer::Shutdown(steady_clock::time_point deadline) {
  impl_->listener->Stop();
  impl_->server->Shutdown(system_clock::now() + std::chrono::duration_cast<system_clock::duration>(
                                                    deadline - steady_clock::now()));
}

}  // namespace diffserve
