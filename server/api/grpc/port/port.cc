// SPDX-License-Identifier: Apache-2.0
#include "server/api/grpc/port/port.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_posix.h>

#include <atomic>
#include <utility>

#include "grpc/health/v1/health.pb.h"
#include "kernels/process/log.h"
#include "server/api/grpc/port/listener.h"

namespace diffserve {
namespace {

using std::chrono::steady_clock;
using std::chrono::system_clock;

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

struct GrpcPort::Impl {
  std::vector<std::string> names;                // of the services
  grpc::CallbackGenericService unknown_methods;  // answers UNIMPLEMENTED; so they are watched too
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<GrpcListener> listener;
};

GrpcPort::GrpcPort(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcPort::~GrpcPort() { Shutdown(steady_clock::now()); }

Result<std::unique_ptr<GrpcPort>> GrpcPort::Start(const GrpcServerOptions& options,
                                                  CallWatch& watch,
                                                  const std::vector<NamedService>& services) {
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
  auto impl = std::make_unique<Impl>();
  impl->listener = std::move(listener).value();
  grpc::ServerBuilder builder;
  Configure(options, builder);
  for (const NamedService& own : services) {
    impl->names.push_back(own.name);
    watch.AsksForAccess(own.name);
    builder.RegisterService(own.service.get());
  }
  builder.RegisterCallbackGenericService(&impl->unknown_methods);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(watch.NewFactory());
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr) return Status(StatusCode::kInternal, "gRPC did not start");
  impl->listener->Start([server = impl->server.get(), &watch](int fd) {
    watch.Opened(fd);
    grpc::AddInsecureChannelFromFd(server, fd);
  });
  return std::unique_ptr<GrpcPort>(new GrpcPort(std::move(impl)));
}

int GrpcPort::port() const { return impl_->listener->port(); }

void GrpcPort::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* health = impl_->server->GetHealthCheckService();
  health->SetServingStatus("", serving);
  for (const std::string& name : impl_->names) health->SetServingStatus(name, serving);
}

void GrpcPort::Shutdown(steady_clock::time_point deadline) {
  impl_->listener->Stop();
  impl_->server->Shutdown(system_clock::now() + std::chrono::duration_cast<system_clock::duration>(
                                                    deadline - steady_clock::now()));
}

}  // namespace diffserve
