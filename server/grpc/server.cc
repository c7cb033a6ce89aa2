#include "server/grpc/server.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_posix.h>
#include <grpcpp/support/server_interceptor.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <thread>

#include "diffserve/v1/inference.grpc.pb.h"
#include "kernels/base/log.h"
#include "server/grpc/call_record.h"
#include "server/grpc/listener.h"
#include "server/grpc/messages.h"
#include "server/request_checks.h"

namespace diffserve {
namespace {

using std::chrono::steady_clock;
using std::chrono::system_clock;

constexpr char kServiceName[] = "diffserve.v1.Inference";

// Guards the services that are not ours (reflection). Their handlers ask nothing, so the call is
// ended under them. Health stays open; our own methods check by themselves, before anything is
// done.
class KeyInterceptor : public grpc::experimental::Interceptor {
 public:
  KeyInterceptor(const ApiKeys& keys, grpc::experimental::ServerRpcInfo* info)
      : keys_(keys), info_(info) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using Point = grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(Point::POST_RECV_INITIAL_METADATA)) {
      const Status access = CheckKey(keys_, *methods->GetRecvInitialMetadata());
      if (!access.ok()) {
        grpc_call_cancel_with_status(info_->server_context()->c_call(), GRPC_STATUS_UNAUTHENTICATED,
                                     access.message().c_str(), nullptr);
      }
    }
    methods->Proceed();
  }

 private:
  const ApiKeys& keys_;
  grpc::experimental::ServerRpcInfo* const info_;
};

class KeyInterceptorFactory : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit KeyInterceptorFactory(const ApiKeys& keys) : keys_(keys) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    const std::string_view method = info->method();
    if (method.starts_with("/grpc.health.v1.Health/") ||
        method.starts_with(std::string("/") + kServiceName + "/"))
      return nullptr;
    return new KeyInterceptor(keys_, info);  // gRPC takes ownership
  }

 private:
  const ApiKeys& keys_;
};

class GenerateCall;

// The calls with new events, and the thread that lets them write. A call is in the queue at most
// once, so their number bounds it.
class WriteStarter {
 public:
  WriteStarter() : thread_([this] { Run(); }) {}
  ~WriteStarter() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  void Add(std::weak_ptr<GenerateCall> call) {
    {
      std::lock_guard lock(mutex_);
      calls_.push_back(std::move(call));
    }
    wake_.notify_one();
  }

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::weak_ptr<GenerateCall>> calls_;
  bool stopping_ = false;
  std::thread thread_;
};

// What the calls share.
struct CallContext {
  Frontend& frontend;
  const ApiKeys& api_keys;
  MetricsExporter* metrics;
  GrpcServerOptions options;
  WriteStarter write_starter;
  // Of a request whose client gave none; not to be guessed, since Cancel takes it.
  std::atomic<uint64_t> next_id{(uint64_t{std::random_device{}()} << 32) | std::random_device{}()};

  CallContext(Frontend& frontend_in, const ApiKeys& keys, MetricsExporter* metrics_in,
              const GrpcServerOptions& options_in)
      : frontend(frontend_in), api_keys(keys), metrics(metrics_in), options(options_in) {}

  // Before Finish.
  void End(const CallRecord& record, const grpc::Status& status, std::string_view request_id = {}) {
    record.End(frontend.engine(), status, request_id);
    if (metrics != nullptr) metrics->CountGrpc(record.method(), status.error_code());
  }
};

steady_clock::time_point ToSteady(system_clock::time_point time) {
  return steady_clock::now() +
         std::chrono::duration_cast<steady_clock::duration>(time - system_clock::now());
}

// One Generate call. There is one write at a time; the next event is taken when it is done, so a
// slow client fills its own ResponseStream and nothing else. It keeps itself alive until gRPC says
// that the call is over.
class GenerateCall : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  static GenerateCall* Begin(CallContext& shared, grpc::CallbackServerContext* context,
                             const v1::GenerateRequest& message) {
    const auto call = std::make_shared<GenerateCall>(shared, context);
    call->self_ = call;
    call->Submit(message);
    return call.get();
  }

  GenerateCall(CallContext& shared, grpc::CallbackServerContext* context)
      : shared_(shared), context_(context), record_("Generate", shared.api_keys, context) {}

  // Starts the next write, or ends the call, if nothing is under way.
  void Advance() {
    queued_.store(false);
    const v1::GenerateResponse* to_write = nullptr;
    grpc::Status status;
    {
      std::lock_guard lock(mutex_);
      if (writing_ || finished_) return;
      if (cancelled_) {
        const bool late = context_->deadline() <= system_clock::now();
        status = late ? grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED,
                                     "the call's deadline has passed")
                      : grpc::Status(grpc::StatusCode::CANCELLED, "the call was cancelled");
      } else if (TakeEvents()) {
        current_ = std::move(pending_.front());
        pending_.pop_front();
        to_write = &current_;
      } else if (!done_) {
        return;
      } else {
        status = record_.ToGrpc(*done_);
      }
      writing_ = to_write != nullptr;
      finished_ = !writing_;
    }
    // Neither call may be made under the lock: gRPC may run a reaction before it returns.
    if (to_write != nullptr) {
      StartWrite(to_write);
    } else {
      End(status);
    }
  }

 private:
  void Submit(const v1::GenerateRequest& message) {
    const Status status = record_.access().ok() ? SubmitToFrontend(message) : record_.access();
    if (status.ok()) return;
    {
      std::lock_guard lock(mutex_);
      finished_ = true;
    }
    End(record_.ToGrpc(status));
  }

  Status SubmitToFrontend(const v1::GenerateRequest& message) {
    Result<GenerateRequest> request = FromProto(message, shared_.frontend.options(),
                                                shared_.frontend.DefaultSampling());
    if (!request.ok()) return request.status();
    request->client = record_.client();
    if (request->request_id.empty())
      request->request_id = "grpc-" + std::to_string(shared_.next_id.fetch_add(1));
    if (request->request_id.size() > kMaxRequestIdBytes) {
      return InvalidArgument("request_id has " + std::to_string(request->request_id.size()) +
                                 " bytes, allowed: at most " + std::to_string(kMaxRequestIdBytes),
                             "request_id");
    }
    if (context_->deadline() < system_clock::now() + std::chrono::hours(24 * 365))
      request->deadline = ToSteady(context_->deadline());
    shape_.request_id = request->request_id;
    shape_.logprobs = request->sampling.num_logprobs >= 0;
    stream_ = std::make_shared<ResponseStream>(
        shared_.frontend.options().max_stream_bytes,
        [call = std::weak_ptr<GenerateCall>(self_)] { Notify(call); });
    const Result<ResponseId> id = shared_.frontend.Generate(std::move(request).value(), stream_);
    if (id.ok()) response_ = *id;
    return id.ok() ? Status() : id.status();
  }

  // Runs on the thread that pushed an event.
  static void Notify(const std::weak_ptr<GenerateCall>& weak) {
    const std::shared_ptr<GenerateCall> call = weak.lock();
    if (call != nullptr && !call->queued_.exchange(true)) call->shared_.write_starter.Add(weak);
  }

  // True if there is a message to write. The start waits for what comes next, since that may be a
  // refusal by the engine, and only a call that has had no message can be retried by the client's
  // own library.
  // REQUIRES: mutex_ is held.
  bool TakeEvents() {
    while (!done_ && (pending_.empty() || holds_start_)) {
      const std::optional<ResponseEvent> event = stream_->TryPop();
      if (!event) break;
      const auto* done = std::get_if<ResponseDone>(&*event);
      if (done != nullptr) done_ = done->status;
      if (done != nullptr && !done->status.ok() && holds_start_) pending_.clear();
      AppendMessages(*event, shape_, pending_);
      holds_start_ = std::holds_alternative<ResponseStarted>(*event);
    }
    return !pending_.empty() && !holds_start_;
  }

  void End(const grpc::Status& status) {
    shared_.End(record_, status, shape_.request_id);
    Finish(status);
  }

  void Abandon() {
    {
      std::lock_guard lock(mutex_);
      if (cancelled_ || finished_) return;
      cancelled_ = true;
    }
    if (stream_ == nullptr) return;
    stream_->Close();
    shared_.frontend.Abandon(response_);
  }

  void OnWriteDone(bool ok) override {
    {
      std::lock_guard lock(mutex_);
      writing_ = false;
    }
    if (!ok) Abandon();
    Advance();
  }

  void OnCancel() override {
    Abandon();
    Advance();
  }

  void OnDone() override {
    if (stream_ != nullptr) stream_->Close();
    self_.reset();  // may delete this
  }

  CallContext& shared_;
  grpc::CallbackServerContext* const context_;
  const CallRecord record_;
  std::shared_ptr<GenerateCall> self_;
  AnswerShape shape_{{}, false, shared_.frontend.tokenizer()};
  std::shared_ptr<ResponseStream> stream_;
  ResponseId response_ = 0;          // set before any reaction can run
  std::atomic<bool> queued_{false};  // in the WriteStarter's queue

  std::mutex mutex_;
  bool writing_ = false;
  bool finished_ = false;
  bool cancelled_ = false;
  std::deque<v1::GenerateResponse> pending_;
  bool holds_start_ = false;      // pending_ is the start alone
  v1::GenerateResponse current_;  // being written
  std::optional<Status> done_;
};

void WriteStarter::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !calls_.empty(); });
    if (calls_.empty()) return;
    const std::weak_ptr<GenerateCall> weak = std::move(calls_.front());
    calls_.pop_front();
    lock.unlock();
    if (const std::shared_ptr<GenerateCall> call = weak.lock()) call->Advance();
    lock.lock();
  }
}

class InferenceService : public v1::Inference::CallbackService {
 public:
  explicit InferenceService(CallContext& shared) : shared_(shared) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override {
    return GenerateCall::Begin(shared_, context, *request);
  }

  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const CallRecord record("Tokenize", shared_.api_keys, context);
    Status status = record.access();
    if (status.ok()) {
      Result<Prompt> prompt = FromProto(*request);
      const bool add_special_tokens = request->has_text() && (!request->has_add_special_tokens() ||
                                                              request->add_special_tokens());
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

  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const CallRecord record("Detokenize", shared_.api_keys, context);
    Status status = record.access();
    if (status.ok() && request->ids_size() > shared_.options.max_detokenize_ids) {
      status = InvalidArgument("ids has " + std::to_string(request->ids_size()) +
                                   " entries, allowed: at most " +
                                   std::to_string(shared_.options.max_detokenize_ids),
                               "ids");
    }
    if (status.ok()) {
      status = shared_.frontend.Detokenize(
          record.client(), {request->ids().begin(), request->ids().end()},
          [this, record, response, reactor](Result<std::string> text) {
            if (text.ok()) response->set_text(*text);
            End(record, text.ok() ? Status() : text.status(), reactor);
          });
    }
    if (!status.ok()) End(record, status, reactor);
    return reactor;
  }

  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const v1::GetModelRequest*,
                                     v1::GetModelResponse* response) override {
    return Answer("GetModel", context, [&]() -> Status {
      FillModel(shared_.frontend, shared_.frontend.engine().options(), *response);
      return {};
    });
  }

  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* context,
                                   const v1::CancelRequest* request, v1::CancelResponse*) override {
    return Answer("Cancel", context, [&]() -> Status {
      if (shared_.frontend.Cancel(request->request_id())) return {};
      return Status(StatusCode::kNotFound, "no request with this request_id is running",
                    "request_id");
    });
  }

 private:
  void End(const CallRecord& record, const Status& status, grpc::ServerUnaryReactor* reactor) {
    const grpc::Status wire = record.ToGrpc(status);
    shared_.End(record, wire);
    reactor->Finish(wire);
  }

  template <typename Body>
  grpc::ServerUnaryReactor* Answer(const char* method, grpc::CallbackServerContext* context,
                                   const Body& body) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const CallRecord record(method, shared_.api_keys, context);
    End(record, record.access().ok() ? body() : record.access(), reactor);
    return reactor;
  }

  CallContext& shared_;
};

// gRPC complains of what clients do, as often as they do it: more than one line a second is kept
// for --log-level debug.
void LogFromGrpc(gpr_log_func_args* args) {
  static std::atomic<int64_t> last_second{-1};
  const int64_t second = std::chrono::duration_cast<std::chrono::seconds>(
                             steady_clock::now().time_since_epoch())
                             .count();
  const bool shown = args->severity == GPR_LOG_SEVERITY_ERROR &&
                     last_second.exchange(second) != second;
  Log(shown ? LogLevel::kWarning : LogLevel::kDebug, "grpc", {{"message", args->message}});
}

void Configure(const GrpcServerOptions& options, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(options.max_receive_bytes);
  builder.SetMaxSendMessageSize(options.max_send_bytes);
  // A compressed request could grow beyond every limit on what is read.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.SetResourceQuota(grpc::ResourceQuota("diffserve")
                               .Resize(options.memory_quota_bytes)
                               .SetMaxThreads(options.max_sync_threads));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams_per_connection);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, options.max_metadata_bytes);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, options.keepalive_time_ms);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, options.keepalive_timeout_ms);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             options.min_client_ping_interval_ms);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, options.max_ping_strikes);
}

}  // namespace

struct GrpcServer::Impl {
  Impl(Frontend& frontend, const ApiKeys& keys, MetricsExporter* metrics,
       const GrpcServerOptions& options)
      : shared(frontend, keys, metrics, options), service(shared) {}

  CallContext shared;
  InferenceService service;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<GrpcListener> listener;
};

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcServer::~GrpcServer() { Shutdown(steady_clock::now()); }

Result<std::unique_ptr<GrpcServer>> GrpcServer::Start(const GrpcServerOptions& options,
                                                      Frontend& frontend, const ApiKeys& api_keys,
                                                      MetricsExporter* metrics) {
  gpr_set_log_function(&LogFromGrpc);
  grpc::EnableDefaultHealthCheckService(true);
  if (options.reflection) grpc::reflection::InitProtoReflectionServerBuilderPlugin();

  Result<std::unique_ptr<GrpcListener>> listener = GrpcListener::Open(
      {.host = options.host, .port = options.port});
  if (!listener.ok()) return listener.status();
  auto impl = std::make_unique<Impl>(frontend, api_keys, metrics, options);
  impl->listener = std::move(listener).value();
  grpc::ServerBuilder builder;
  Configure(options, builder);
  builder.RegisterService(&impl->service);
  if (api_keys.required()) {
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
        interceptors;
    interceptors.push_back(std::make_unique<KeyInterceptorFactory>(api_keys));
    builder.experimental().SetInterceptorCreators(std::move(interceptors));
  }
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr) return Status(StatusCode::kInternal, "gRPC did not start");
  impl->listener->Start(
      [server = impl->server.get()](int fd) { grpc::AddInsecureChannelFromFd(server, fd); });
  auto server = std::unique_ptr<GrpcServer>(new GrpcServer(std::move(impl)));
  server->SetServing(true);
  return server;
}

int GrpcServer::port() const { return impl_->listener->port(); }

void GrpcServer::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* health = impl_->server->GetHealthCheckService();
  health->SetServingStatus("", serving);
  health->SetServingStatus(kServiceName, serving);
}

void GrpcServer::Shutdown(steady_clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<system_clock::duration>(deadline -
                                                                       steady_clock::now());
  impl_->listener->Stop();
  impl_->server->Shutdown(system_clock::now() + left);
}

}  // namespace diffserve
