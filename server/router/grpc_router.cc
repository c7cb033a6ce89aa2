// SPDX-License-Identifier: Apache-2.0
#include "server/router/grpc_router.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/support/method_handler.h>

#include <deque>
#include <utility>

#include "kernels/process/check.h"
#include "server/api/grpc/call_watch.h"
#include "server/api/grpc/port/port.h"
#include "server/router/grpc_forward.h"

namespace diffserve {
namespace {

// A service whose calls are all forwarded, made from its description.
class ForwardedService : public grpc::Service {
 public:
  ForwardedService(const google::protobuf::ServiceDescriptor& service, GrpcForwarding& forwarding) {
    using Handler = grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>;
    for (int i = 0; i < service.method_count(); ++i) {
      const google::protobuf::MethodDescriptor& method = *service.method(i);
      // Every kind of call is a stream of messages in both directions, as far as bytes go.
      const Method& added = methods_.emplace_back(
          Method{"/" + service.full_name() + "/" + method.name(),
                 RequestModelField(*method.input_type())});
      AddMethod(new grpc::internal::RpcServiceMethod(
          added.path.c_str(), grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
      MarkMethodRawCallback(i, new Handler([&added, &forwarding](auto* context) {
                              return GrpcForwardCall::New(forwarding, added.path, added.field,
                                                          context);
                            }));
    }
  }

 private:
  struct Method {
    std::string path;
    RequestModelField field;
  };
  std::deque<Method> methods_;  // gRPC and the handlers refer to them
};

}  // namespace

struct GrpcRouter::Impl {
  Impl(const GrpcServerOptions& options, const RoutedModels& models, ModelChildren& children,
       const ApiKeys& keys)
      : watch({options.max_streams_per_connection, options.max_reflection_streams}, keys),
        forwarding(options, models, children, watch) {}

  CallWatch watch;
  GrpcForwarding forwarding;
  std::vector<NamedService> services;
  std::unique_ptr<GrpcPort> port;
};

GrpcRouter::GrpcRouter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcRouter::~GrpcRouter() { Shutdown(std::chrono::steady_clock::now()); }

Result<std::unique_ptr<GrpcRouter>> GrpcRouter::Start(const GrpcServerOptions& options,
                                                      const std::vector<std::string>& services,
                                                      const RoutedModels& models,
                                                      ModelChildren& children,
                                                      const ApiKeys& keys) {
  auto impl = std::make_unique<Impl>(options, models, children, keys);
  for (const std::string& name : services) {
    const auto* const service =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    DS_CHECK(service != nullptr, name + " is not linked in");
    impl->services.push_back(
        {name, std::make_unique<ForwardedService>(*service, impl->forwarding)});
  }
  Result<std::unique_ptr<GrpcPort>> port = GrpcPort::Start(options, impl->watch, impl->services);
  if (!port.ok()) return port.status();
  impl->port = std::move(port).value();
  return std::unique_ptr<GrpcRouter>(new GrpcRouter(std::move(impl)));
}

int GrpcRouter::port() const { return impl_->port->port(); }
void GrpcRouter::SetServing(bool serving) { impl_->port->SetServing(serving); }
void GrpcRouter::Shutdown(std::chrono::steady_clock::time_point deadline) {
  impl_->port->Shutdown(deadline);
}

}  // namespace diffserve
