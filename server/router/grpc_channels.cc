// SPDX-License-Identifier: Apache-2.0
#include "server/router/grpc_channels.h"

#include <algorithm>
#include <utility>

namespace diffserve {

std::shared_ptr<grpc::Channel> GrpcChannels::Take(size_t model, const ChildAddress& address,
                                                  const std::string& client) {
  std::shared_ptr<Connection> connection;
  Process ended;  // its connections close without the lock
  {
    std::lock_guard lock(mutex_);
    Process& process = models_[model];
    if (process.run != address.run) {
      std::swap(ended, process);
      process.run = address.run;
    }
    connection = Find(process, address.grpc_port, client);
    ++connection->calls;
    ++connection->carried;
  }
  grpc::Channel* const channel = connection->channel.get();
  return {channel, [this, model, run = address.run, client, connection = std::move(connection)](
                       grpc::Channel*) mutable { Give(model, run, client, connection); }};
}

// REQUIRES: the lock.
std::shared_ptr<GrpcChannels::Connection> GrpcChannels::Find(Process& process, int port,
                                                             const std::string& client) {
  auto& own = process.in_use[client];
  const auto has_room = [this](const auto& c) { return c->calls < options_.max_calls; };
  const auto found = std::ranges::find_if(own, has_room);
  if (found != own.end()) return *found;
  if (process.kept.empty()) {
    own.push_back(std::make_shared<Connection>(Connection{.channel = connect_(port)}));
  } else {
    own.push_back(std::move(process.kept.back()));
    process.kept.pop_back();
  }
  return own.back();
}

void GrpcChannels::Give(size_t model, uint64_t run, const std::string& client,
                        const std::shared_ptr<Connection>& connection) {
  std::lock_guard lock(mutex_);
  if (--connection->calls > 0) return;
  Process& process = models_[model];
  if (process.run != run) return;  // the process has ended
  const auto own = process.in_use.find(client);
  std::erase(own->second, connection);
  if (own->second.empty()) process.in_use.erase(own);
  // The process may not have freed all calls that were cancelled, and gRPC limits these too.
  if (connection->carried <= options_.max_kept_calls && process.kept.size() < options_.max_kept)
    process.kept.push_back(connection);
}

size_t GrpcChannels::Count(size_t model) const {
  std::lock_guard lock(mutex_);
  size_t count = models_[model].kept.size();
  for (const auto& [client, connections] : models_[model].in_use) count += connections.size();
  return count;
}

}  // namespace diffserve
