// SPDX-License-Identifier: Apache-2.0
// CallWatch: an interceptor on every call of every service of the gRPC port. It checks the key for
// services that are not ours and limits the open streams of reflection. It ends connections whose
// resets come faster than gRPC frees the calls, because gRPC 1.51 has no limit on resets: new calls
// are refused, calls under way continue, and then the connection is closed
// (docs/decisions/37-refuse-then-close.md).
//
// Thread safety: every method may be called from any thread.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_interceptor.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/base/status.h"
#include "server/api/head/api_key.h"

namespace diffserve {

struct CallWatchOptions {
  // Open streams of a connection, gRPC's limit. Calls that gRPC holds beyond it have no stream any
  // more: they were reset, or their deadline has passed. With as many of them new calls are
  // refused, with twice as many the connection is reset.
  int64_t max_streams = 1024;
  int max_reflection_streams = 8;  // beyond them the oldest is ended
  // In a model's process only calls with this secret are served. All of them come by connections
  // of the parent, so none of these is ended. Empty: there is no parent.
  std::string parent_secret = {};
};

class CallWatch {
 public:
  CallWatch(CallWatchOptions options, const ApiKeys& keys)
      : options_(std::move(options)), keys_(keys) {}

  // The methods of this service ask for Access themselves. Call before the server starts.
  void AsksForAccess(const std::string& service);
  // Call before gRPC gets the socket.
  void Opened(int fd);
  // Why a call is refused that needs no key: its connection takes no new calls, or it does not come
  // from the parent.
  Status Entry(const grpc::ServerContextBase& context) const;
  // The same for one that needs a key.
  Status Access(const grpc::ServerContextBase& context) const;
  // ClientName of a call; empty if it may not enter.
  std::string ClientOf(const grpc::ServerContextBase& context) const;
  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> NewFactory();
  int64_t num_begun() const { return num_begun_; }  // calls of all services

 private:
  struct Connection;
  struct Stream;
  class Interceptor;
  class Factory;

  // The client that the parent names, if the call comes from it.
  std::optional<std::string> ForwardedClient(const grpc::ServerContextBase& context) const;
  // The connection of a call that begins and whether the call may go on; nullptr: unknown.
  std::pair<std::shared_ptr<Connection>, bool> Begun(const grpc::ServerContextBase& context);
  // gRPC frees the call.
  void Freed(Connection& connection, bool was_admitted);
  // Ends the oldest stream if there are too many.
  void AddReflection(const std::shared_ptr<Stream>& stream);
  void RemoveReflection(const std::shared_ptr<Stream>& stream);

  const CallWatchOptions options_;
  const ApiKeys& keys_;
  std::vector<std::string> asking_methods_;  // "/SERVICE/"
  std::atomic<int64_t> num_begun_ = 0;
  mutable std::mutex mutex_;
  std::unordered_map<int, std::shared_ptr<Connection>> connections_;  // by descriptor; each until
                                                                      // the next of that number
  std::list<std::shared_ptr<Stream>> reflection_;                     // the oldest first
};

}  // namespace diffserve
