// SPDX-License-Identifier: Apache-2.0
// GrpcChannels: gRPC connections to the models' processes. A connection carries calls of one
// client, so that no client's calls wait for those of another, and only as many that none waits in
// gRPC for a stream. A connection without calls is kept for the next ones or closed.
// Thread safety: every method may be called from any thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/router/children/model_children.h"

namespace diffserve {

struct GrpcChannelsOptions {
  int max_calls = 512;        // at once; below what the process allows a connection
  int max_kept_calls = 1000;  // a connection that has carried more is closed when it has none
  size_t max_kept = 4;        // connections without calls, per process
};

class GrpcChannels {
 public:
  using Connect = std::function<std::shared_ptr<grpc::Channel>(int port)>;

  GrpcChannels(size_t num_models, GrpcChannelsOptions options, Connect connect)
      : options_(options), connect_(std::move(connect)), models_(num_models) {}

  // The connection for one call, which ends with the pointer. It outlives none of them.
  std::shared_ptr<grpc::Channel> Take(size_t model, const ChildAddress& address,
                                      const std::string& client);
  // Open connections to a model's process.
  size_t Count(size_t model) const;

 private:
  struct Connection {
    std::shared_ptr<grpc::Channel> channel;
    int calls = 0;    // under way
    int carried = 0;  // since its start
  };
  struct Process {
    uint64_t run = 0;
    std::map<std::string, std::list<std::shared_ptr<Connection>>> in_use;  // by client; no empty
                                                                           // lists
    std::vector<std::shared_ptr<Connection>> kept;                         // without calls
  };

  std::shared_ptr<Connection> Find(Process& process, int port, const std::string& client);
  void Give(size_t model, uint64_t run, const std::string& client,
            const std::shared_ptr<Connection>& connection);

  const GrpcChannelsOptions options_;
  const Connect connect_;
  mutable std::mutex mutex_;
  std::vector<Process> models_;
};

}  // namespace diffserve
