// KvEventPublisher: tells routers over ZeroMQ which prefixes this server has cached, as vLLM does:
// PUB frames [topic, sequence number, payload] (kv_event_message.h), numbers from 0, big endian in
// 8 bytes. Who missed some asks the replay socket (ROUTER) with ["", first number] and gets ["",
// topic, number, payload] for each batch that is still kept, then ["", "", -1, ""].
//
// The first batch says that nothing is cached: a new process knows nothing of what the one before
// it said.
// Thread safety: Publish and counts may be called from any thread. A thread of its own does all
// that could wait.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/kv_event.h"
#include "kernels/base/status.h"

namespace diffserve {

struct KvEventPublisherOptions {
  // As ZeroMQ writes them. The publisher listens on an endpoint with `*` or `::` in it and on
  // ipc:// and inproc://, and connects to any other.
  std::string endpoint;
  std::string replay_endpoint;  // listened on; empty: no replay
  std::string topic;
  int page_size = 0;                  // tokens a page
  size_t max_queued_batches = 4096;   // not sent yet; what comes then is dropped, and its number is
                                      // left out
  size_t max_replay_batches = 10000;  // kept for replay
  size_t max_replay_bytes = size_t{64} << 20;
  int max_unread_batches = 10000;  // for a subscriber that does not read; then it misses some
};

struct KvEventCounts {
  uint64_t published = 0, dropped = 0;  // events
};

class KvEventPublisher {
 public:
  // Error: text that is no endpoint (kInvalidArgument), or an endpoint in use; both name the flag.
  static Result<std::unique_ptr<KvEventPublisher>> Start(KvEventPublisherOptions options);
  ~KvEventPublisher();  // what has not been sent by then is dropped

  void Publish(std::vector<KvEvent> events);  // never waits for the network
  KvEventCounts counts() const;
  // What is listened on, with the port that the system chose; as given if connected.
  const std::string& endpoint() const;
  const std::string& replay_endpoint() const;

 private:
  struct Impl;
  explicit KvEventPublisher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace diffserve
