// StreamStore: the streamed answers that a client may come back to after its connection was lost
// (--resumable-streams-bytes). An answer belongs to the store, not to a connection: a connection
// reads it, and another one may take over, from behind the event that its client saw last. A stream
// that nobody reads goes on for a while; then it is cancelled, as one without a store is at once.
// What has ended is kept as long, for a client that missed the end.
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
#include "server/http/message.h"
#include "server/openai/event_log.h"

namespace diffserve {

struct StreamStoreLimits {
  size_t max_bytes = 0;  // of events kept, all streams together; 0: no stream is kept
  size_t max_stream_bytes = size_t{1} << 20;  // likewise, of one
  std::chrono::seconds linger{60};  // how long a stream goes on, or is kept, without a reader

  size_t stream_bytes() const { return std::min(max_stream_bytes, max_bytes); }
  size_t max_streams() const { return max_bytes == 0 ? 0 : max_bytes / stream_bytes(); }
};

// Who may read a stream: the same key, by the same path.
struct StreamOwner {
  std::string client;
  std::string route;
  bool operator==(const StreamOwner&) const = default;
};

enum class StreamFate {
  kResumed,  // a connection took over
  kExpired,  // nobody came back, so it was cancelled
  kCount
};

// One of the answers. A reader is a connection; its methods do nothing once another has taken over.
class KeptStream {
 public:
  using Reader = uint64_t;
  using TimePoint = std::chrono::steady_clock::time_point;

  KeptStream(std::string id, StreamOwner owner, size_t max_bytes)
      : id_(std::move(id)), owner_(std::move(owner)), log_(id_, max_bytes) {}

  // Once. `answer` calls Wake.
  void Begin(std::unique_ptr<HttpExchange> answer) noexcept;
  // From the thread that makes events: the reader's connection is woken.
  void Wake();

  // As of HttpExchange.
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
  std::unique_ptr<HttpExchange> answer_;  // until it is whole
  std::optional<HttpReply> head_;         // of the stream, once it has begun and while it is whole
  Reader reader_ = 0;
  bool has_reader_ = false;
  TimePoint left_at_;   // since then it has none
  std::string replay_;  // what the reader gets before all else
  bool done_ = false;
  bool ended_with_error_ = false;

  std::mutex wake_mutex_;  // alone, or within mutex_
  std::function<void()> wake_;
};

class StreamStore {
 public:
  using TimePoint = KeptStream::TimePoint;

  // `now`: the clock. `on_fate` may come from any thread.
  StreamStore(StreamStoreLimits limits, std::function<TimePoint()> now,
              std::function<void(StreamFate)> on_fate);
  ~StreamStore() { Close(); }

  bool keeps() const { return limits_.max_streams() > 0; }
  // A thread of its own looks after the streams without reader. REQUIRES: the clock is
  // steady_clock.
  void Start();
  // Ends all streams; none can be opened any more.
  void Close();

  struct Reading {
    std::shared_ptr<KeptStream> stream;
    KeptStream::Reader reader = 0;
  };
  // A new stream and its first reader. Error: kResourceExhausted, as many streams are kept as may
  // be.
  Result<Reading> Open(StreamOwner owner, std::function<void()> wake);
  enum class Missing { kNone, kUnknown, kOutgrown };
  // The reader from now on; what follows `last_seen` is the first that it gets. nullopt: `*missing`
  // says why. Where all has been seen, and there is no more, `*missing` is kNone.
  std::optional<Reading> Resume(const StreamOwner& owner, std::string_view last_seen,
                                std::function<void()> wake, Missing* missing);
  // The reader's connection is gone.
  void Leave(const Reading& reading) noexcept;

  // Ends the streams whose time is over; when the next one's will be, if there is one.
  std::optional<TimePoint> Expire();
  size_t size() const;

 private:
  using Streams = std::map<std::string, std::shared_ptr<KeptStream>, std::less<>>;
  void Run();
  bool MakeRoom(std::shared_ptr<KeptStream>* gone);

  const StreamStoreLimits limits_;
  const std::function<TimePoint()> now_;
  const std::function<void(StreamFate)> on_fate_;
  mutable std::mutex mutex_;  // before a stream's
  std::condition_variable changed_;
  Streams streams_;
  uint64_t num_left_ = 0;  // calls of Leave
  bool closed_ = false;
  std::thread thread_;
};

// The answer over one connection.
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
