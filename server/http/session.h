// SPDX-License-Identifier: Apache-2.0
// HttpSession: one connection, as a loop of small steps. Each step makes progress or has requested
// a wake-up. It reads, answers one request after another, and ends the connection. A reply that
// cannot be finished ends with a reset, so that no client takes it for complete. A Unix socket has
// no reset; there the missing last chunk shows it.
// Thread safety: only on its loop's thread.
#pragma once

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "server/http/client/upstream_connections.h"
#include "server/http/loop.h"
#include "server/http/message.h"
#include "server/http/reader.h"
#include "server/http/reply_text.h"

namespace diffserve {

class HttpSession;

// Shared by the connections of a loop; only on the loop's thread.
struct HttpSessions {
  static constexpr size_t kScratchBytes = 64 << 10;  // one read

  boost::asio::io_context context{1};
  UpstreamConnections upstream;  // of the calls that its connections forward
  std::vector<char> scratch = std::vector<char>(kScratchBytes);
  std::unordered_set<std::shared_ptr<HttpSession>> sessions;
};

// The loop whose handlers this thread runs; nullptr: none.
HttpSessions* CurrentHttpLoop();

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
        owner_(std::move(shared)),
        shared_(*owner_),
        reader_(shared_.options.limits),
        held_bytes_(shared_.held_bytes) {}
  ~HttpSession() {
    entry_.reset();
    shared_.ConnectionEnded();
  }

  void Start();
  void Stop(HttpEnding ending);

 private:
  enum class Phase { kReading, kAnswering, kLingering, kClosed };
  enum class Timer { kNone, kHead, kIdle, kBody, kWrite, kLinger };

  const HttpServerOptions& options() const { return shared_.options; }
  void Run();
  void RunAgain();
  bool Step();
  bool StepReading();
  bool StepAnswering();
  bool Flush();
  void WatchDelivery();
  void OnWatched();
  bool IsStalled(size_t undelivered);
  void Dispatch();
  void QueueReply(const HttpReply& reply);
  void AppendToBody(std::string_view bytes);
  void FinishReply();
  void RefuseRequest(int status, std::string_view reason);
  void DropLaterRequests();
  void Linger();
  void OnLingered();
  void Cut();
  void CountCut(HttpCut how) const;
  void Close();
  size_t UndeliveredBytes();

  void WantRead();
  void WantWrite();
  void OnReadable();
  void Arm(Timer timer, std::chrono::steady_clock::time_point when);
  void Disarm() { armed_ = Timer::kNone; }
  void OnTimer();
  void ArmForReading();
  void SetIdle(bool is_idle);
  void EndIfIdle();
  bool CountHeldBytes();
  void BecomeSilent();
  void WaitToPing();
  void OnPingTimer();

  boost::asio::generic::stream_protocol::socket socket_;
  std::unique_ptr<ConnectionTable::Entry> entry_;
  bool is_idle_ = false;  // so that another connection may have its place
  boost::asio::steady_timer timer_;
  boost::asio::steady_timer ping_timer_;
  const std::shared_ptr<HttpSessions> loop_;
  const std::shared_ptr<HttpShared> owner_;
  HttpShared& shared_;
  HttpReader reader_;
  std::string peer_;  // the peer's address, without port
  Phase phase_ = Phase::kReading;
  std::unique_ptr<HttpExchange> exchange_;
  bool reply_sent_ = false;  // the head of the exchange's reply is queued
  ReplyFraming framing_;
  bool close_after_reply_ = false;
  bool ended_reply_ = false;  // the whole reply is in out_
  std::string ping_;          // of the reply; empty: no pings
  bool silent_ = false;       // Frames has returned no bytes since silent_since_
  std::chrono::steady_clock::time_point silent_since_;
  bool ping_timer_waiting_ = false;
  std::string out_;  // to be written
  size_t written_ = 0;
  int requests_ = 0;
  bool reading_ = false, writing_ = false;  // a readiness wait is running
  bool running_ = false;
  size_t turn_bytes_ = 0;  // of replies, made in this turn
  bool waits_for_turn_ = false;
  Timer armed_ = Timer::kNone;
  std::chrono::steady_clock::time_point timer_end_;
  bool timer_waiting_ = false;
  std::chrono::steady_clock::time_point head_begin_, body_begin_;
  RequestMemory::Part held_bytes_;
  bool knows_client_ = false;  // of the current request
  bool dropping_ = false;      // further bytes of the peer are dropped
  size_t dropped_bytes_ = 0;
  size_t refused_body_bytes_ = 0;  // that may follow a refusal
  uint64_t given_bytes_ = 0;       // reply bytes passed to the system
  uint64_t delivered_bytes_ = 0;   // of these, acknowledged by the peer at the last check
  std::chrono::steady_clock::time_point last_delivery_;  // time of the last check that found more
};

}  // namespace diffserve
