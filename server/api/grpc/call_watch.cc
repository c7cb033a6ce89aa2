// SPDX-License-Identifier: Apache-2.0
#include "server/api/grpc/call_watch.h"

#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <iterator>
#include <string_view>
#include <tuple>
#include <utility>

#include "kernels/process/log.h"
#include "server/api/grpc/call_record.h"
#include "server/api/head/parent_secret.h"
#include "server/serving/status_codes.h"

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
  // The peer gets all that was written, and then the end of the connection.
  void Close() const {
    if (SocketNumber(fd) == number) shutdown(fd, SHUT_WR);
  }
  // Drops unread data too. gRPC, which owns the socket, notices the reset and frees it.
  void Reset() const {
    const sockaddr no_address{.sa_family = AF_UNSPEC, .sa_data = {}};
    if (SocketNumber(fd) == number) connect(fd, &no_address, sizeof(no_address));
  }

  int fd = -1;
  ino_t number = 0;
  int64_t held = 0;       // calls begun and not freed
  int64_t under_way = 0;  // those of them that were not refused
  bool refuses = false;   // new calls
  bool is_parents = false;
  bool is_reset = false;
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
    if (connection_ != nullptr) watch_.Freed(*connection_, admitted_);
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(Point::POST_RECV_INITIAL_METADATA)) Begin();
    methods->Proceed();
  }

 private:
  void Begin() {
    ++watch_.num_begun_;
    grpc::ServerContextBase& context = *info_->server_context();
    std::tie(connection_, admitted_) = watch_.Begun(context);
    // Health is for all but in a model's process, and our own methods ask for access first. The
    // handlers of other services do not, so this ends their calls.
    if (method_.starts_with(kHealthMethods) && watch_.options_.parent_secret.empty()) return;
    for (const std::string& asking : watch_.asking_methods_) {
      if (method_.starts_with(asking)) return;
    }
    grpc_call* const call = context.c_call();
    const Status access = watch_.Access(context);
    if (!access.ok()) {
      const auto code = static_cast<grpc_status_code>(WireStatusOf(access.code()).grpc);
      grpc_call_cancel_with_status(call, code, access.message().c_str(), nullptr);
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
  bool admitted_ = true;
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

void CallWatch::AsksForAccess(const std::string& service) {
  asking_methods_.push_back("/" + service + "/");
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

Status CallWatch::Entry(const grpc::ServerContextBase& context) const {
  {
    std::lock_guard lock(mutex_);
    const auto found = connections_.find(DescriptorOf(context.peer()));
    if (found != connections_.end() && found->second->refuses)
      return Status(StatusCode::kUnavailable,
                    "too many calls of this connection were cut off: open a new connection");
  }
  if (options_.parent_secret.empty() || ForwardedClient(context)) return {};
  return Status(StatusCode::kUnauthenticated, "this port is only for the server that started it");
}

Status CallWatch::Access(const grpc::ServerContextBase& context) const {
  DS_RETURN_IF_ERROR(Entry(context));
  return CheckKey(keys_, context.client_metadata());
}

std::optional<std::string> CallWatch::ForwardedClient(
    const grpc::ServerContextBase& context) const {
  const auto [begin, end] = context.client_metadata().equal_range(kClientField);
  if (begin == end || std::next(begin) != end) return std::nullopt;
  return ClientInField({begin->second.data(), begin->second.size()}, options_.parent_secret);
}

std::string CallWatch::ClientOf(const grpc::ServerContextBase& context) const {
  if (!options_.parent_secret.empty()) return ForwardedClient(context).value_or("");
  return diffserve::ClientOf(keys_, context.client_metadata(), context.peer());
}

std::pair<std::shared_ptr<CallWatch::Connection>, bool> CallWatch::Begun(
    const grpc::ServerContextBase& context) {
  const bool is_parents = !options_.parent_secret.empty() && ForwardedClient(context);
  std::lock_guard lock(mutex_);
  const auto found = connections_.find(DescriptorOf(context.peer()));
  if (found == connections_.end()) return {nullptr, true};
  Connection& connection = *found->second;
  ++connection.held;
  const LogFields counts = {{"held", std::to_string(connection.held)},
                            {"under_way", std::to_string(connection.under_way)}};
  connection.is_parents = connection.is_parents || is_parents;
  const bool may_end = !connection.is_parents;
  if (may_end && connection.held > 2 * options_.max_streams &&
      !std::exchange(connection.refuses, true))
    Log(LogLevel::kWarning, "grpc_calls_refused", counts);
  // gRPC reads on, so a flood takes memory although its calls are refused.
  if (may_end && connection.held > 3 * options_.max_streams &&
      !std::exchange(connection.is_reset, true)) {
    Log(LogLevel::kWarning, "grpc_connection_reset", counts);
    connection.Reset();
  }
  if (!connection.refuses) ++connection.under_way;
  return {found->second, !connection.refuses};
}

void CallWatch::Freed(Connection& connection, bool was_admitted) {
  std::lock_guard lock(mutex_);
  --connection.held;
  if (was_admitted && --connection.under_way == 0 && connection.refuses) connection.Close();
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
