// SPDX-License-Identifier: Apache-2.0
// HttpSession: one connection, as a loop of small steps. Each step makes progress or has requested
// a wake-up. It reads, answers one request after another, and ends the connection. A reply that
// cannot be finished ends with a reset, so that no client takes it for complete. A Unix socket has
// no reset; there the missing last chunk shows it.
// Thread safety: only on its loop's thread.
#pragma once

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "server/http/client/upstream_connections.h"
#include "server/http/message.h"
#include "server/http/reader.h"
#include "server/http/session/delivery_watch.h"
#include "server/http/session/read_deadline.h"
#include "server/http/session/reply_writer.h"
#include "server/http/session/session_timer.h"
#include "server/http/session/shared.h"

namespace diffserve {

class HttpSession;

// Shared by the connections of a loop; only on the loop's thread.
struct HttpSessions {
  static constexpr size_t kScratchBytes = 64 << 10;  // one read

  boost::asio::io_context context{1};
  UpstreamConnections upstream{context};  // of the calls that its connections forward
  std::vector<char> scratch = std::vector<char>(kScratchBytes);
  std::unordered_set<std::shared_ptr<HttpSession>> sessions;
};

class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(boost::asio::generic::stream_protocol::socket socket,
              std::unique_ptr<ConnectionTable::Entry> entry, std::shared_ptr<HttpSessions> loop,
              std::shared_ptr<HttpShared> shared)
      : socket_(std::move(socket)),
        entry_(std::move(entry)),
        timer_(loop->context),
        ping_timer_(loop->context),
        loop_(std::move(loop)),
        shared_(std::move(shared)),
        reader_(shared_->options.limits),
        delivery_(shared_->options.write_stall_timeout),
        held_bytes_(shared_->held_bytes) {}
  ~HttpSession() {
    entry_.reset();
    shared_->ConnectionEnded();
  }

  void Start();
  void Stop(HttpEnding ending);

 private:
  enum class Phase { kReading, kAnswering, kLingering, kClosed };
  enum class Timer { kNone, kIdle, kRequest, kWrite, kLinger };

  const HttpServerOptions& options() const { return shared_->options; }
  void Run();
  void RunAgain();
  bool Step();
  bool StepReading();
  bool StepAnswering();
  bool Flush();
  void WatchDelivery();
  void OnWatched();
  void Dispatch();
  std::function<void()> Wake();
  void QueueReply(const HttpReply& reply);
  void TakeFrames();
  void FinishReply();
  void RefuseRequest(int status, std::string_view reason);
  void DropLaterRequests();
  void Linger();
  void OnLingered();
  void Cut();
  void CountCut(HttpCut how) const;
  void Close();
  size_t UndeliveredNow() { return UndeliveredBytes(socket_.native_handle()); }

  void WantRead();
  void WantWrite();
  void OnReadable();
  void Arm(Timer timer, std::chrono::steady_clock::time_point when);
  void Disarm();
  void OnTimer();
  void ArmForReading();
  void SetIdle(bool is_idle);
  void EndIfIdle();
  bool CountHeldBytes();
  void OnSilence();

  boost::asio::generic::stream_protocol::socket socket_;
  std::unique_ptr<ConnectionTable::Entry> entry_;
  bool is_idle_ = false;  // so that another connection may have its place
  SessionTimer timer_, ping_timer_;
  Timer armed_ = Timer::kNone;  // what timer_ is for
  const std::shared_ptr<HttpSessions> loop_;
  const std::shared_ptr<HttpShared> shared_;
  HttpReader reader_;
  ReadDeadline read_deadline_;
  std::string peer_;  // the peer's address, without port
  Phase phase_ = Phase::kReading;
  std::unique_ptr<HttpExchange> exchange_;
  ReplyWriter writer_;
  DeliveryWatch delivery_;
  bool close_after_reply_ = false;
  std::string ping_;  // of the reply; empty: no pings
  int requests_ = 0;
  bool reading_ = false, writing_ = false;  // a readiness wait is running
  bool running_ = false;
  size_t turn_bytes_ = 0;  // of replies, made in this turn
  bool waits_for_turn_ = false;
  RequestMemory::Part held_bytes_;
  bool knows_client_ = false;  // of the current request
  // Further bytes of the peer are dropped: how many more of them. nullopt: they are read.
  std::optional<size_t> bytes_to_drop_;
};

}  // namespace diffserve
