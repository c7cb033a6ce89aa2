// SPDX-License-Identifier: Apache-2.0
// KvEventPublisher: publishes to routers over ZeroMQ which prefixes this server has cached, in
// vLLM's format. PUB frames are [topic, sequence number, payload] (kv_event_message.h), with
// numbers from 0, big endian in 8 bytes. A subscriber that missed batches sends ["", first number]
// to the replay socket (ROUTER). It gets ["", topic, number, payload] for each batch that is still
// kept, then ["", "", -1, ""].
//
// The first batch says that nothing is cached, because a new process does not know what an earlier
// one published.
// Thread safety: Publish and counts may be called from any thread. A thread of its own does all
// that could wait.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/contract/kv_event.h"
#include "kernels/base/status.h"
#include "server/observe/kv_event_feed.h"
#include "server/observe/kv_event_source.h"

namespace diffserve {

struct KvEventPublisherOptions {
  // ZeroMQ endpoints. The publisher listens on an endpoint with `*` or `::` in it and on
  // ipc:// and inproc://, and connects to any other.
  std::string endpoint;
  std::string replay_endpoint;  // listened on; empty: no replay
  std::string topic;
  int page_size = 0;                  // tokens per page
  size_t max_queued_batches = 4096;   // unsent; further batches are dropped, and their numbers are
                                      // skipped
  size_t max_replay_batches = 10000;  // kept for replay
  size_t max_replay_bytes = size_t{64} << 20;
  int max_unread_batches = 10000;  // per subscriber that does not read; beyond it batches are lost
  std::shared_ptr<KvEventFeed> feed;  // gets each batch too; nullptr: there is none
};

struct KvEventCounts {
  uint64_t published = 0, dropped = 0;  // events
};

class KvEventPublisher {
 public:
  // Error: an invalid endpoint (kInvalidArgument) or one in use; both name the flag.
  static Result<std::unique_ptr<KvEventPublisher>> Start(KvEventPublisherOptions options);
  ~KvEventPublisher();  // drops unsent batches

  void Publish(std::vector<KvEvent> events);  // never waits for the network
  KvEventCounts counts() const;
  // The endpoint, with the port that the system chose; unchanged if connected.
  const std::string& endpoint() const;
  const std::string& replay_endpoint() const;
  // Where another process may subscribe; nullopt: the publisher is connected to its subscriber, or
  // listens on inproc://.
  std::optional<KvEventSource> source() const;

 private:
  struct Impl;
  explicit KvEventPublisher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace diffserve
