// SPDX-License-Identifier: Apache-2.0
#include "server/api/grpc/call_watch.h"

#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "kernels/base/log.h"
#include "server/api/grpc/call_record.h"

namespace diffserve {
namespace {

using Point = grpc::experimental::InterceptionHookPoints;

constexpr std::string_view kHealthMethods = "/grpc.health.v1.Health/";
constexpr std::string_view kReflectionMethods = "/grpc.reflection.";

// Distinguishes a socket from a later one with the same descriptor.
ino_t SocketNumber(int fd) {
  struct stat info{};
  return fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode) ? info.st_ino : 0;
}

}  // namespace

struct CallWatch::Connection {
  int fd = -1;
  ino_t number = 0;
  int64_t open = 0, answered = 0, cut = 0;
  bool closed = false;
};

// A stream of reflection; it holds a reference of its call.
struct CallWatch::Stream {
  explicit Stream(grpc_call* call_in) : call(call_in) { grpc_call_ref(call); }
  ~Stream() { grpc_call_unref(call); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  grpc_call* const call;
};

class CallWatch::Interceptor : public grpc::experimental::Interceptor {
 public:
  Interceptor(CallWatch& watch, grpc::experimental::ServerRpcInfo* info)
      : watch_(watch), info_(info), method_(info->method()) {}
  ~Interceptor() override {
    if (stream_ != nullptr) watch_.RemoveReflection(stream_);
    if (!ended_ && connection_ != nullptr) watch_.Ended(*connection_, true);
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(Point::POST_RECV_INITIAL_METADATA))
      Begin(*methods->GetRecvInitialMetadata());
    if (methods->QueryInterceptionHookPoint(Point::PRE_SEND_STATUS)) {
      const grpc::StatusCode code = methods->GetSendStatus().error_code();
      const bool was_cut = code == grpc::StatusCode::CANCELLED ||
                           code == grpc::StatusCode::DEADLINE_EXCEEDED;
      if (!std::exchange(ended_, true) && connection_ != nullptr)
        watch_.Ended(*connection_, was_cut);
    }
    methods->Proceed();
  }

 private:
  void Begin(const GrpcMetadata& metadata) {
    ++watch_.num_begun_;
    grpc_call* const call = info_->server_context()->c_call();
    connection_ = watch_.Begun(info_->server_context()->peer());
    // Health needs no key, and our own methods check the key first. The handlers of other services
    // do not, so this ends their calls.
    if (method_.starts_with(kHealthMethods)) return;
    for (const std::string& checked : watch_.checked_methods_) {
      if (method_.starts_with(checked)) return;
    }
    const Status access = CheckKey(watch_.keys_, metadata);
    if (!access.ok()) {
      grpc_call_cancel_with_status(call, GRPC_STATUS_UNAUTHENTICATED, access.message().c_str(),
                                   nullptr);
    } else if (method_.starts_with(kReflectionMethods)) {
      stream_ = std::make_shared<Stream>(call);
      watch_.AddReflection(stream_);
    }
  }

  CallWatch& watch_;
  grpc::experimental::ServerRpcInfo* const info_;
  const std::string_view method_;
  std::shared_ptr<Connection> connection_;
  std::shared_ptr<Stream> stream_;
  bool ended_ = false;
};

class CallWatch::Factory : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Factory(CallWatch& watch) : watch_(watch) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    return new Interceptor(watch_, info);  // gRPC takes ownership
  }

 private:
  CallWatch& watch_;
};

void CallWatch::ChecksItsKeys(const std::string& service) {
  checked_methods_.push_back("/" + service + "/");
}

void CallWatch::Opened(int fd) {
  auto connection = std::make_shared<Connection>();
  connection->fd = fd;
  connection->number = SocketNumber(fd);
  std::lock_guard lock(mutex_);
  connections_[fd] = std::move(connection);
}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> CallWatch::NewFactory() {
  return std::make_unique<Factory>(*this);
}

std::shared_ptr<CallWatch::Connection> CallWatch::Begun(const std::string& peer) {
  const int fd = DescriptorOf(peer);
  std::lock_guard lock(mutex_);
  const auto found = connections_.find(fd);
  if (found == connections_.end()) return nullptr;
  ++found->second->open;
  CloseIfHostile(*found->second);
  return found->second;
}

void CallWatch::Ended(Connection& connection, bool was_cut) {
  std::lock_guard lock(mutex_);
  --connection.open;
  ++(was_cut ? connection.cut : connection.answered);
  CloseIfHostile(connection);
}

void CallWatch::CloseIfHostile(Connection& connection) {
  // gRPC allows max_streams open streams, so those beyond were cut off and only wait to end.
  const int64_t waiting = std::max<int64_t>(0, connection.open - options_.max_streams);
  const int64_t excess = connection.cut + waiting - connection.answered;
  if (connection.closed || excess < options_.max_excess_cuts) return;
  connection.closed = true;
  // The connection ends with a reset, which drops unread data. gRPC, which owns the socket, notices
  // the reset and frees it.
  if (SocketNumber(connection.fd) != connection.number) return;
  const sockaddr no_address{.sa_family = AF_UNSPEC, .sa_data = {}};
  connect(connection.fd, &no_address, sizeof(no_address));
  Log(LogLevel::kWarning, "grpc_connection_closed",
      {{"reason", "more calls were cut off than answered"},
       {"cut", std::to_string(connection.cut)},
       {"answered", std::to_string(connection.answered)}});
}

void CallWatch::AddReflection(const std::shared_ptr<Stream>& stream) {
  std::shared_ptr<Stream> oldest;
  {
    std::lock_guard lock(mutex_);
    reflection_.push_back(stream);
    if (reflection_.size() > static_cast<size_t>(options_.max_reflection_streams)) {
      oldest = std::move(reflection_.front());
      reflection_.pop_front();
    }
  }
  if (oldest == nullptr) return;
  grpc_call_cancel_with_status(oldest->call, GRPC_STATUS_RESOURCE_EXHAUSTED,
                               "too many streams of reflection are open: the oldest is ended",
                               nullptr);
}

void CallWatch::RemoveReflection(const std::shared_ptr<Stream>& stream) {
  std::lock_guard lock(mutex_);
  reflection_.remove(stream);
}

}  // namespace diffserve
