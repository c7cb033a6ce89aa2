// SPDX-License-Identifier: Apache-2.0
#include "server/api/stream_store.h"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "kernels/base/log.h"
#include "kernels/base/random_bits.h"
#include "kernels/base/thread_registry.h"

namespace diffserve {
namespace {

// Ids must not be guessable: without keys, the id is all that a client needs.
std::string NewStreamId() {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string id;
  for (uint64_t bits : {RandomBits(), RandomBits()}) {
    for (int i = 0; i < 16; ++i, bits >>= 4) id += kDigits[bits & 0xf];
  }
  return id;
}

}  // namespace

void KeptStream::Begin(std::unique_ptr<HttpExchange> answer) noexcept {
  std::lock_guard lock(mutex_);
  answer_ = std::move(answer);
}

void KeptStream::Wake() {
  std::lock_guard lock(wake_mutex_);
  if (wake_) wake_();
}

KeptStream::Reader KeptStream::Attach(std::function<void()> wake) {
  std::lock_guard lock(wake_mutex_);
  if (wake_) wake_();  // the previous reader: it has nothing to wait for
  wake_ = std::move(wake);
  has_reader_ = true;
  return ++reader_;
}

bool KeptStream::IsRead() const {
  std::lock_guard lock(mutex_);
  return has_reader_;
}

// A reply that does not stream is an error from before the first event.
std::optional<HttpReply> KeptStream::Reply(Reader reader) {
  std::lock_guard lock(mutex_);
  if (head_ || reader != reader_) return head_;
  std::optional<HttpReply> reply = answer_->Reply();
  if (reply && reply->streams) head_ = reply;
  return reply;
}

bool KeptStream::Frames(Reader reader, std::string* bytes) {
  std::lock_guard lock(mutex_);
  if (reader != reader_) return true;  // stop: the client reads on another connection
  *bytes += std::exchange(replay_, {});
  if (done_) return true;
  try {
    std::string fresh;
    done_ = answer_->Frames(&fresh);
    log_.Append(fresh, bytes);
  } catch (const std::bad_alloc&) {  // an event is lost now, so the stream cannot continue
    head_.reset();
    answer_.reset();
    throw;
  }
  if (done_) {
    ended_with_error_ = answer_->EndedWithError();
    answer_.reset();
  }
  return done_;
}

bool KeptStream::EndWithError(Reader reader) {
  std::lock_guard lock(mutex_);
  return reader == reader_ && answer_ != nullptr && answer_->EndWithError();
}

bool KeptStream::EndedWithError() const {
  std::lock_guard lock(mutex_);
  return ended_with_error_;
}

StreamStore::StreamStore(StreamStoreLimits limits, std::function<TimePoint()> now,
                         std::function<void(StreamFate)> on_fate)
    : limits_(limits), now_(std::move(now)), on_fate_(std::move(on_fate)) {}

void StreamStore::Start() {
  thread_ = std::thread([this] { Run(); });
}

void StreamStore::Close() {
  Streams streams;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    streams.swap(streams_);
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void StreamStore::Run() {
  const NamedThread named("streams", "the next one's end");
  std::unique_lock lock(mutex_);
  while (!closed_) {
    const uint64_t seen = num_left_;
    lock.unlock();
    const std::optional<TimePoint> next = Expire();
    lock.lock();
    const auto woken = [&] { return closed_ || num_left_ != seen; };
    if (next)
      changed_.wait_until(lock, *next, woken);
    else
      changed_.wait(lock, woken);
  }
}

// Removes the stream without reader that has ended and was left the longest ago.
bool StreamStore::MakeRoom(std::shared_ptr<KeptStream>* gone) {
  if (streams_.size() < limits_.max_streams()) return true;
  auto oldest = streams_.end();
  TimePoint oldest_left;
  for (auto it = streams_.begin(); it != streams_.end(); ++it) {
    std::lock_guard lock(it->second->mutex_);
    if (it->second->has_reader_ || !it->second->done_) continue;
    if (oldest != streams_.end() && it->second->left_at_ >= oldest_left) continue;
    oldest = it;
    oldest_left = it->second->left_at_;
  }
  if (oldest == streams_.end()) return false;
  *gone = std::move(oldest->second);
  streams_.erase(oldest);
  return true;
}

Result<StreamStore::Reading> StreamStore::Open(StreamOwner owner, std::function<void()> wake) {
  std::shared_ptr<KeptStream> gone;  // destroyed without the lock
  auto stream = std::make_shared<KeptStream>(NewStreamId(), std::move(owner),
                                             limits_.stream_bytes());
  std::lock_guard lock(mutex_);
  if (closed_) return Status(StatusCode::kUnavailable, "the server is shutting down");
  if (!MakeRoom(&gone)) {
    return Status(StatusCode::kResourceExhausted,
                  "all " + std::to_string(limits_.max_streams()) +
                      " resumable streams are in use (--resumable-streams-bytes)");
  }
  const KeptStream::Reader reader = [&] {
    std::lock_guard stream_lock(stream->mutex_);
    return stream->Attach(std::move(wake));
  }();
  streams_.emplace(stream->id_, stream);
  return Reading{std::move(stream), reader};
}

std::optional<StreamStore::Reading> StreamStore::Resume(const StreamOwner& owner,
                                                        std::string_view last_seen,
                                                        std::function<void()> wake,
                                                        Missing* missing) {
  const std::optional<EventId> id = ParseEventId(last_seen);
  *missing = Missing::kUnknown;
  std::lock_guard lock(mutex_);
  const auto found = id ? streams_.find(id->stream) : streams_.end();
  if (found == streams_.end() || found->second->owner_ != owner) return std::nullopt;
  const std::shared_ptr<KeptStream>& stream = found->second;
  std::lock_guard stream_lock(stream->mutex_);
  if (!stream->head_) return std::nullopt;
  std::string replay;
  const EventLog::Found kept = stream->log_.AppendAfter(id->number, &replay);
  if (kept == EventLog::Found::kUnknown) return std::nullopt;
  if (kept == EventLog::Found::kOutgrown) {
    *missing = Missing::kOutgrown;
    return std::nullopt;
  }
  *missing = Missing::kNone;
  if (stream->done_ && replay.empty()) return std::nullopt;
  const KeptStream::Reader reader = stream->Attach(std::move(wake));
  stream->replay_ = std::move(replay);
  on_fate_(StreamFate::kResumed);
  return Reading{stream, reader};
}

void StreamStore::Leave(const Reading& reading) noexcept {
  std::shared_ptr<KeptStream> gone;
  {
    std::lock_guard lock(mutex_);
    ++num_left_;
    KeptStream& stream = *reading.stream;
    std::lock_guard stream_lock(stream.mutex_);
    if (stream.reader_ != reading.reader) return;
    stream.has_reader_ = false;
    stream.left_at_ = now_();
    stream.replay_ = {};
    {
      std::lock_guard wake_lock(stream.wake_mutex_);
      stream.wake_ = nullptr;
    }
    // A stream that has not begun, or has lost an event, cannot be resumed.
    const auto place = streams_.find(stream.id_);
    if (!stream.head_ && place != streams_.end()) {
      gone = std::move(place->second);
      streams_.erase(place);
    }
  }
  changed_.notify_all();
}

std::optional<StreamStore::TimePoint> StreamStore::Expire() {
  std::vector<std::shared_ptr<KeptStream>> gone;
  std::optional<TimePoint> next;
  {
    std::lock_guard lock(mutex_);
    const TimePoint now = now_();
    for (auto it = streams_.begin(); it != streams_.end();) {
      std::lock_guard stream_lock(it->second->mutex_);
      const TimePoint end = it->second->left_at_ + limits_.linger;
      if (it->second->has_reader_) {
        ++it;
      } else if (end > now) {
        next = std::min(end, next.value_or(end));
        ++it;
      } else {
        gone.push_back(it->second);
        it = streams_.erase(it);
      }
    }
  }
  for (const std::shared_ptr<KeptStream>& stream : gone) {
    std::unique_lock lock(stream->mutex_);
    const std::unique_ptr<HttpExchange> answer = std::move(stream->answer_);
    if (stream->done_) continue;
    lock.unlock();
    Log(LogLevel::kInfo, "stream_expired", {{"stream", stream->id_}});
    on_fate_(StreamFate::kExpired);
  }
  return next;
}

size_t StreamStore::size() const {
  std::lock_guard lock(mutex_);
  return streams_.size();
}

}  // namespace diffserve
