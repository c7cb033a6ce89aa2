// SPDX-License-Identifier: Apache-2.0
// CallWatch: an interceptor on every call of every service of the gRPC port. It checks the key for
// services that are not ours and limits the open streams of reflection. It closes connections with
// more calls cut off than answered, because gRPC 1.51 has no limit on resets.
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
#include <vector>

#include "server/api/head/api_key.h"

namespace diffserve {

struct CallWatchOptions {
  int64_t max_excess_cuts = 1000;  // of a connection: calls cut off minus calls answered
  int64_t max_streams = 1024;      // open streams of a connection, gRPC's limit
  int max_reflection_streams = 8;  // beyond them the oldest is ended
};

class CallWatch {
 public:
  CallWatch(CallWatchOptions options, const ApiKeys& keys) : options_(options), keys_(keys) {}

  // The methods of this service check the key themselves. Call before the server starts.
  void ChecksItsKeys(const std::string& service);
  // Call before gRPC gets the socket.
  void Opened(int fd);
  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> NewFactory();
  int64_t num_begun() const { return num_begun_; }  // calls of all services

 private:
  struct Connection;
  struct Stream;
  class Interceptor;
  class Factory;

  // Records the begin of a call; nullptr if its connection is unknown.
  std::shared_ptr<Connection> Begun(const std::string& peer);
  void Ended(Connection& connection, bool was_cut);
  // Closes the connection if too many calls were cut off. REQUIRES: mutex_ is held.
  void CloseIfHostile(Connection& connection);
  // Ends the oldest stream if there are too many.
  void AddReflection(const std::shared_ptr<Stream>& stream);
  void RemoveReflection(const std::shared_ptr<Stream>& stream);

  const CallWatchOptions options_;
  const ApiKeys& keys_;
  std::vector<std::string> checked_methods_;  // "/SERVICE/"
  std::atomic<int64_t> num_begun_ = 0;
  std::mutex mutex_;
  std::unordered_map<int, std::shared_ptr<Connection>> connections_;  // by descriptor; each until
                                                                      // the next of that number
  std::list<std::shared_ptr<Stream>> reflection_;                     // the oldest first
};

}  // namespace diffserve
