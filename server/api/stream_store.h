// SPDX-License-Identifier: Apache-2.0
// StreamStore: streamed answers that a client can resume after its connection was lost
// (--resumable-streams-bytes). An answer belongs to the store, not to a connection. A connection
// reads it, and another one may take over, from the event after the last that its client saw. A
// stream without reader continues for the linger time and is then cancelled; without a store it
// would be cancelled at once. An ended stream is kept as long, for a client that missed the end.
//
// Thread safety: every method may be called from any thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "kernels/base/status.h"
#include "server/api/event_log.h"
#include "server/http/message.h"

namespace diffserve {

struct StreamStoreLimits {
  size_t max_bytes = 0;  // of kept events over all streams; 0: no stream is kept
  size_t max_stream_bytes = size_t{1} << 20;  // of kept events of one stream
  std::chrono::seconds linger{60};  // how long a stream without reader continues or is kept

  size_t stream_bytes() const { return std::min(max_stream_bytes, max_bytes); }
  size_t max_streams() const { return max_bytes == 0 ? 0 : max_bytes / stream_bytes(); }
};

// The owner of a stream: only the same key on the same path may read it.
struct StreamOwner {
  std::string client;
  std::string route;
  bool operator==(const StreamOwner&) const = default;
};

enum class StreamFate {
  kResumed,  // a connection took over
  kExpired,  // no connection took over in time, so it was cancelled
  kCount
};

// One stored answer. Its reader is a connection; the reader's methods have no effect after another
// connection took over.
class KeptStream {
 public:
  using Reader = uint64_t;
  using TimePoint = std::chrono::steady_clock::time_point;

  KeptStream(std::string id, StreamOwner owner, size_t max_bytes)
      : id_(std::move(id)), owner_(std::move(owner)), log_(id_, max_bytes) {}

  // Call once. `answer` calls Wake.
  void Begin(std::unique_ptr<HttpExchange> answer) noexcept;
  // Wakes the reader's connection; called by the thread that makes events.
  void Wake();

  // As in HttpExchange.
  std::optional<HttpReply> Reply(Reader reader);
  bool Frames(Reader reader, std::string* bytes);
  bool EndWithError(Reader reader);
  bool EndedWithError() const;

 private:
  friend class StreamStore;

  Reader Attach(std::function<void()> wake);
  bool IsRead() const;

  const std::string id_;
  const StreamOwner owner_;

  mutable std::mutex mutex_;
  EventLog log_;
  std::unique_ptr<HttpExchange> answer_;  // until it is complete
  std::optional<HttpReply> head_;         // from the stream's begin until an event is lost
  Reader reader_ = 0;
  bool has_reader_ = false;
  TimePoint left_at_;   // since then it has no reader
  std::string replay_;  // what the reader gets first
  bool done_ = false;
  bool ended_with_error_ = false;

  std::mutex wake_mutex_;  // taken alone or within mutex_
  std::function<void()> wake_;
};

class StreamStore {
 public:
  using TimePoint = KeptStream::TimePoint;

  // `now`: the clock. `on_fate` may be called from any thread.
  StreamStore(StreamStoreLimits limits, std::function<TimePoint()> now,
              std::function<void(StreamFate)> on_fate);
  ~StreamStore() { Close(); }

  bool keeps() const { return limits_.max_streams() > 0; }
  // Starts a thread that ends expired streams. REQUIRES: the clock is steady_clock.
  void Start();
  // Ends all streams. No stream can be opened afterwards.
  void Close();

  struct Reading {
    std::shared_ptr<KeptStream> stream;
    KeptStream::Reader reader = 0;
  };
  // Opens a stream with its first reader. Error: kResourceExhausted if the maximum number of
  // streams is kept.
  Result<Reading> Open(StreamOwner owner, std::function<void()> wake);
  enum class Missing { kNone, kUnknown, kOutgrown };
  // Makes the caller the reader of a stream; it first gets the events after `last_seen`. nullopt:
  // `*missing` says why; kNone if the client has seen all of a stream that has ended.
  std::optional<Reading> Resume(const StreamOwner& owner, std::string_view last_seen,
                                std::function<void()> wake, Missing* missing);
  // The reader's connection was lost.
  void Leave(const Reading& reading) noexcept;

  // Ends expired streams; returns when the next one expires, if there is one.
  std::optional<TimePoint> Expire();
  size_t size() const;

 private:
  using Streams = std::map<std::string, std::shared_ptr<KeptStream>, std::less<>>;
  void Run();
  bool MakeRoom(std::shared_ptr<KeptStream>* gone);

  const StreamStoreLimits limits_;
  const std::function<TimePoint()> now_;
  const std::function<void(StreamFate)> on_fate_;
  mutable std::mutex mutex_;  // taken before a stream's
  std::condition_variable changed_;
  Streams streams_;
  uint64_t num_left_ = 0;  // calls of Leave
  bool closed_ = false;
  std::thread thread_;
};

// The answer as sent over one connection.
class KeptStreamExchange : public HttpExchange {
 public:
  // `store` outlives it.
  KeptStreamExchange(StreamStore& store, StreamStore::Reading reading)
      : store_(store), reading_(std::move(reading)) {}
  ~KeptStreamExchange() override { store_.Leave(reading_); }

  std::optional<HttpReply> Reply() override { return reading_.stream->Reply(reading_.reader); }
  bool Frames(std::string* bytes) override {
    return reading_.stream->Frames(reading_.reader, bytes);
  }
  bool EndWithError() override { return reading_.stream->EndWithError(reading_.reader); }
  bool EndedWithError() const override { return reading_.stream->EndedWithError(); }

 private:
  StreamStore& store_;
  const StreamStore::Reading reading_;
};

}  // namespace diffserve
