// SPDX-License-Identifier: Apache-2.0
#include "server/observe/kv_event_publisher.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <zmq.hpp>

#include "kernels/base/refusal.h"
#include "kernels/process/log.h"
#include "kernels/process/thread_registry.h"
#include "server/observe/kv_event_message.h"

namespace diffserve {
namespace {

constexpr uint64_t kEndOfReplay = ~uint64_t{0};  // -1 in 8 bytes
constexpr int64_t kMaxReceivedBytes = 256;  // per frame: a handshake, a subscription, a request

std::string BigEndian(uint64_t number) {
  std::string bytes(8, '\0');
  for (int i = 7; i >= 0; --i, number >>= 8)
    bytes[static_cast<size_t>(i)] = static_cast<char>(number & 0xff);
  return bytes;
}

uint64_t FromBigEndian(std::string_view bytes) {
  uint64_t number = 0;
  for (char c : bytes) number = number << 8 | static_cast<unsigned char>(c);
  return number;
}

double UnixSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool IsListenedOn(const std::string& endpoint) {
  return endpoint.find('*') != std::string::npos || endpoint.find("::") != std::string::npos ||
         endpoint.starts_with("ipc://") || endpoint.starts_with("inproc://");
}

Status Attach(zmq::socket_t& socket, std::string& endpoint, bool listen, const std::string& flag) {
  try {
    if (!listen) {
      socket.connect(endpoint);
      return {};
    }
    socket.bind(endpoint);
    endpoint = socket.get(zmq::sockopt::last_endpoint);
    return {};
  } catch (const zmq::error_t& error) {
    const std::string message = flag + " is " + endpoint + ": " + error.what();
    if (error.num() == EADDRINUSE || error.num() == EACCES)
      return Status(StatusCode::kUnavailable, message);
    return NotAllowed(message, "an endpoint of ZeroMQ, such as tcp://*:5557", flag);
  }
}

}  // namespace

struct KvEventPublisher::Impl {
  explicit Impl(KvEventPublisherOptions publisher_options)
      : options(std::move(publisher_options)) {}
  ~Impl();
  Status Open();
  void Run();
  void Wake() const;
  bool Stopped();
  void SendQueued();
  void Send(double unix_seconds, std::span<const KvEvent> events);
  void Replay();
  bool Reply(const zmq::message_t& client, std::string_view topic, uint64_t number,
             zmq::message_t& payload);

  struct Batch {
    double unix_seconds = 0;
    std::vector<KvEvent> events;
    uint64_t dropped_before = 0;  // batches between this one and the one queued before it
  };
  struct Sent {
    uint64_t number = 0;
    zmq::message_t payload;
  };

  KvEventPublisherOptions options;
  std::mutex mutex;
  std::deque<Batch> queue;
  uint64_t batches_dropped = 0;  // since the last one that was queued
  bool stop = false;
  std::atomic<uint64_t> published{0}, dropped{0};
  int wake_fd = -1;
  bool takes_subscribers = false;  // of other processes; set by Open

  // Used only by the thread.
  zmq::context_t context{1};
  zmq::socket_t publisher, replay;
  uint64_t next_number = 0;
  std::deque<Sent> sent;
  size_t sent_bytes = 0;
  std::thread thread;
};

KvEventPublisher::Impl::~Impl() {
  if (thread.joinable()) {
    {
      std::lock_guard lock(mutex);
      stop = true;
    }
    Wake();
    thread.join();
  }
  if (wake_fd >= 0) close(wake_fd);
}

Status KvEventPublisher::Impl::Open() {
  wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake_fd < 0) return Status(StatusCode::kInternal, "no eventfd for KV events");
  publisher = zmq::socket_t(context, zmq::socket_type::pub);
  publisher.set(zmq::sockopt::sndhwm, options.max_unread_batches);
  publisher.set(zmq::sockopt::maxmsgsize, kMaxReceivedBytes);
  publisher.set(zmq::sockopt::linger, 0);
  const bool listens = IsListenedOn(options.endpoint);
  takes_subscribers = listens && !options.endpoint.starts_with("inproc://");
  DS_RETURN_IF_ERROR(Attach(publisher, options.endpoint, listens, "--kv-events-endpoint"));
  if (options.replay_endpoint.empty()) return {};
  replay = zmq::socket_t(context, zmq::socket_type::router);
  replay.set(zmq::sockopt::sndhwm, static_cast<int>(options.max_replay_batches) + 1);
  // With this option, sending to a client that does not read fails instead of dropping messages.
  replay.set(zmq::sockopt::router_mandatory, true);
  replay.set(zmq::sockopt::maxmsgsize, kMaxReceivedBytes);
  replay.set(zmq::sockopt::linger, 0);
  return Attach(replay, options.replay_endpoint, /*listen=*/true, "--kv-events-replay-endpoint");
}

void KvEventPublisher::Impl::Wake() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd, &one, sizeof(one));  // fails only if it
                                                                               // is awake anyway
}

void KvEventPublisher::Impl::Run() {
  KvEvent cleared;
  cleared.kind = KvEvent::Kind::kCleared;
  Send(UnixSeconds(), {&cleared, 1});
  std::vector<zmq::pollitem_t> waits = {{nullptr, wake_fd, ZMQ_POLLIN, 0}};
  if (replay) waits.push_back({replay.handle(), 0, ZMQ_POLLIN, 0});
  while (!Stopped()) {
    try {
      zmq::poll(waits, std::chrono::milliseconds(-1));
      uint64_t wakes = 0;
      if (waits[0].revents != 0 && read(wake_fd, &wakes, sizeof(wakes)) > 0) SendQueued();
      if (waits.size() > 1 && waits[1].revents != 0) Replay();
    } catch (const zmq::error_t& error) {
      if (error.num() != EINTR)
        Log(LogLevel::kError, "kv_events_failed", {{"reason", error.what()}});
    }
  }
}

bool KvEventPublisher::Impl::Stopped() {
  std::lock_guard lock(mutex);
  return stop;
}

void KvEventPublisher::Impl::SendQueued() {
  std::deque<Batch> batches;
  {
    std::lock_guard lock(mutex);
    batches.swap(queue);
  }
  for (const Batch& batch : batches) {
    next_number += batch.dropped_before;
    std::span<const KvEvent> events = batch.events;
    while (!events.empty()) {
      const std::span<const KvEvent> now = events.first(
          std::min(events.size(), kMaxKvEventsInPayload));
      Send(batch.unix_seconds, now);
      events = events.subspan(now.size());
    }
  }
}

void KvEventPublisher::Impl::Send(double unix_seconds, std::span<const KvEvent> events) {
  if (options.feed != nullptr) options.feed->Append(next_number, unix_seconds, events);
  const std::string payload = KvEventPayload(unix_seconds, events, options.page_size);
  const std::string number = BigEndian(next_number);
  Sent& kept = sent.emplace_back(Sent{next_number++, zmq::message_t(payload)});
  publisher.send(zmq::buffer(options.topic), zmq::send_flags::sndmore);
  publisher.send(zmq::buffer(number), zmq::send_flags::sndmore);
  zmq::message_t shared;
  shared.copy(kept.payload);
  publisher.send(std::move(shared), zmq::send_flags::none);
  published += events.size();
  sent_bytes += payload.size();
  while (!replay || sent.size() > options.max_replay_batches ||
         sent_bytes > options.max_replay_bytes) {
    sent_bytes -= sent.front().payload.size();
    sent.pop_front();
    if (sent.empty()) break;
  }
}

// One request: [client, "", first number]. Anything else is not answered.
void KvEventPublisher::Impl::Replay() {
  std::vector<zmq::message_t> frames(1);
  if (!replay.recv(frames[0], zmq::recv_flags::dontwait)) return;
  while (frames.back().more()) {
    zmq::message_t frame;
    if (!replay.recv(frame, zmq::recv_flags::dontwait)) return;
    frames.push_back(std::move(frame));
  }
  if (frames.size() != 3 || frames[1].size() != 0 || frames[2].size() != 8) return;
  const uint64_t first = FromBigEndian(frames[2].to_string_view());
  for (Sent& batch : sent) {
    if (batch.number >= first && !Reply(frames[0], options.topic, batch.number, batch.payload))
      return;
  }
  zmq::message_t nothing;
  Reply(frames[0], "", kEndOfReplay, nothing);
}

// False: the client is gone or does not read; it gets no more.
bool KvEventPublisher::Impl::Reply(const zmq::message_t& client, std::string_view topic,
                                   uint64_t number, zmq::message_t& payload) {
  constexpr auto kMore = zmq::send_flags::sndmore | zmq::send_flags::dontwait;
  const std::string number_bytes = BigEndian(number);
  zmq::message_t shared;
  shared.copy(payload);
  try {
    return replay.send(zmq::buffer(client.data(), client.size()), kMore) &&
           replay.send(zmq::message_t(), kMore) && replay.send(zmq::buffer(topic), kMore) &&
           replay.send(zmq::buffer(number_bytes), kMore) &&
           replay.send(std::move(shared), zmq::send_flags::dontwait);
  } catch (const zmq::error_t& error) {
    if (error.num() == EHOSTUNREACH) return false;
    throw;
  }
}

KvEventPublisher::KvEventPublisher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
KvEventPublisher::~KvEventPublisher() = default;

Result<std::unique_ptr<KvEventPublisher>> KvEventPublisher::Start(KvEventPublisherOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  DS_RETURN_IF_ERROR(impl->Open());
  impl->thread = std::thread([impl = impl.get()] {
    const NamedThread named("kv-events", "its queue");
    impl->Run();
  });
  return std::unique_ptr<KvEventPublisher>(new KvEventPublisher(std::move(impl)));
}

void KvEventPublisher::Publish(std::vector<KvEvent> events) {
  const double now = UnixSeconds();
  {
    std::lock_guard lock(impl_->mutex);
    if (impl_->queue.size() >= impl_->options.max_queued_batches) {
      impl_->dropped += events.size();
      ++impl_->batches_dropped;
      return;
    }
    impl_->queue.push_back({now, std::move(events), std::exchange(impl_->batches_dropped, 0)});
  }
  impl_->Wake();
}

KvEventCounts KvEventPublisher::counts() const { return {impl_->published, impl_->dropped}; }
const std::string& KvEventPublisher::endpoint() const { return impl_->options.endpoint; }
const std::string& KvEventPublisher::replay_endpoint() const {
  return impl_->options.replay_endpoint;
}
std::optional<KvEventSource> KvEventPublisher::source() const {
  if (!impl_->takes_subscribers) return std::nullopt;
  const KvEventPublisherOptions& options = impl_->options;
  return KvEventSource{.endpoint = options.endpoint,
                       .topic = options.topic,
                       .replay_endpoint = options.replay_endpoint,
                       .max_replay_batches = options.max_replay_batches,
                       .max_queued_batches = options.max_queued_batches,
                       .max_unread_batches = options.max_unread_batches};
}

}  // namespace diffserve
