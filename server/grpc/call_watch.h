// CallWatch: what the gRPC port does with every call of every service, by an interceptor: the key
// of services that are not ours, how many streams of reflection may be open, and connections that
// have more of their calls cut off than answered, which are closed. gRPC 1.51 has no limit on
// resets.
//
// Thread safety: every method may be called from any thread.
#pragma once

#include <grpcpp/support/server_interceptor.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "server/api_key.h"

namespace diffserve {

struct CallWatchOptions {
  int64_t max_excess_cuts = 1000;  // calls of a connection that were cut off, beyond those answered
  int64_t max_streams = 1024;      // open ones of a connection, as gRPC limits them
  int max_reflection_streams = 8;  // beyond them the oldest is ended
};

class CallWatch {
 public:
  CallWatch(CallWatchOptions options, const ApiKeys& keys) : options_(options), keys_(keys) {}

  // Before gRPC gets the socket.
  void Opened(int fd);
  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> NewFactory();
  int64_t num_begun() const { return num_begun_; }  // calls of every service that it has seen

 private:
  struct Connection;
  struct Stream;
  class Interceptor;
  class Factory;

  // A call has begun; nullptr if its connection is not known.
  std::shared_ptr<Connection> Begun(const std::string& peer);
  void Ended(Connection& connection, bool was_cut);
  // If too many calls were cut off. REQUIRES: mutex_ is held.
  void CloseIfHostile(Connection& connection);
  // Ends the oldest if there are too many.
  void AddReflection(const std::shared_ptr<Stream>& stream);
  void RemoveReflection(const std::shared_ptr<Stream>& stream);

  const CallWatchOptions options_;
  const ApiKeys& keys_;
  std::atomic<int64_t> num_begun_ = 0;
  std::mutex mutex_;
  std::unordered_map<int, std::shared_ptr<Connection>> connections_;  // by descriptor; each until
                                                                      // the next of that number
  std::list<std::shared_ptr<Stream>> reflection_;                     // the oldest first
};

}  // namespace diffserve
