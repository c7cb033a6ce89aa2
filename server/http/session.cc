// SPDX-License-Identifier: Apache-2.0
#include "server/http/session.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/log.h"
#include "server/http/peer_address.h"

namespace diffserve {
namespace {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr size_t kReplyTurnBytes = 64 << 10;   // of replies that a connection makes before others
                                               // have a turn
constexpr size_t kMaxWaitingBytes = 64 << 10;  // of later requests; with more the connection ends
                                               // after the reply under way
constexpr size_t kMaxDroppedBytes = 1 << 20;   // then, and while the peer reads the last reply,
                                               // besides the rest of a refused body

// Nothing was read or written, and the socket is as it was.
bool IsNotYet(const ErrorCode& error) {
  return error == asio::error::would_block || error == asio::error::try_again ||
         error == asio::error::interrupted;
}

}  // namespace

void HttpSession::Start() {
  ErrorCode ignored;
  socket_.non_blocking(true, ignored);
  socket_.set_option(tcp::no_delay(true), ignored);  // a Unix socket has no such option
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
  if (options().send_buffer_bytes > 0) {
    socket_.set_option(asio::socket_base::send_buffer_size(options().send_buffer_bytes), ignored);
  }
  peer_ = PeerAddress(socket_.native_handle());
  held_bytes_.SetClient(peer_);
  entry_->OnEnd([loop = loop_, weak = weak_from_this()] {
    asio::post(loop->context, [weak] {
      if (const auto self = weak.lock()) self->EndIfIdle();
    });
  });
  Run();
}

void HttpSession::Stop(HttpEnding ending) {
  close_after_reply_ = true;
  const bool idle = phase_ == Phase::kLingering || (phase_ == Phase::kReading && out_.empty());
  if (ending == HttpEnding::kNow) return idle ? Close() : Cut();
  if (idle && UndeliveredBytes() == 0) return Close();
  if (phase_ == Phase::kReading && idle) return Linger();
  if (ending == HttpEnding::kWithError && reply_sent_ && exchange_ != nullptr &&
      exchange_->EndWithError())
    Run();
}

void HttpSession::Run() {
  if (running_) return;  // called from within a step; the loop below goes on
  running_ = true;
  turn_bytes_ = 0;
  bool goes_on = true;
  while (goes_on && turn_bytes_ < kReplyTurnBytes) goes_on = phase_ != Phase::kClosed && Step();
  running_ = false;
  CountHeldBytes();
  if (goes_on) RunAgain();
}

// Runs after the other connections that are ready.
void HttpSession::RunAgain() {
  if (std::exchange(waits_for_turn_, true)) return;
  asio::post(loop_->context, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      self->waits_for_turn_ = false;
      self->Run();
    }
  });
}

// False if it waits for the peer or for `wake`, or has ended.
bool HttpSession::Step() {
  if (!out_.empty() && !Flush()) return false;
  if (phase_ == Phase::kClosed) return false;
  if (ended_reply_) {
    FinishReply();
    return phase_ == Phase::kReading;
  }
  switch (phase_) {
    case Phase::kReading:
      return StepReading();
    case Phase::kAnswering:
      return StepAnswering();
    case Phase::kLingering:
    case Phase::kClosed:
      break;
  }
  return false;
}

bool HttpSession::StepReading() {
  switch (reader_.state()) {
    case HttpReader::State::kReady:
      Dispatch();
      return true;
    case HttpReader::State::kRefused:
      RefuseRequest(reader_.refusal().status, reader_.refusal().reason);
      return true;
    case HttpReader::State::kHead:
    case HttpReader::State::kBody:
      break;
  }
  if (reader_.TakeContinue()) {
    out_ = "HTTP/1.1 100 Continue\r\n\r\n";
    return true;
  }
  ArmForReading();
  WantRead();
  return false;
}

// Only a connection that waits for a request, or on a port of short requests for the rest of one,
// may have to go for another.
void HttpSession::SetIdle(bool is_idle) {
  if (std::exchange(is_idle_, is_idle) != is_idle) entry_->SetIdle(is_idle);
}

// Its place was given away. What the peer has sent meanwhile is served.
void HttpSession::EndIfIdle() {
  if (phase_ != Phase::kReading || !entry_->HasLostPlace()) return;
  ErrorCode error;
  if (socket_.available(error) > 0 && !error) OnReadable();
  if (phase_ == Phase::kReading && entry_->HasLostPlace()) Close();
}

void HttpSession::ArmForReading() {
  SetIdle(reader_.idle() || !options().begun_requests_keep_place);
  if (reader_.state() == HttpReader::State::kBody) {
    if (body_begin_ == Clock::time_point()) body_begin_ = Clock::now();
    const auto earned = std::chrono::milliseconds(1000 * reader_.body_bytes_received() /
                                                  options().body_bytes_per_second);
    Arm(Timer::kBody, body_begin_ + options().body_grace + earned);
  } else if (reader_.idle()) {
    head_begin_ = {};
    const auto time = requests_ == 0 ? options().head_timeout : options().idle_timeout;
    if (armed_ != Timer::kIdle) Arm(Timer::kIdle, Clock::now() + time);
  } else {
    if (head_begin_ == Clock::time_point()) head_begin_ = Clock::now();
    Arm(Timer::kHead, head_begin_ + options().head_timeout);
  }
}

void HttpSession::Dispatch() {
  Disarm();
  SetIdle(false);
  body_begin_ = head_begin_ = {};
  HttpRequest request = reader_.Take();
  request.peer = peer_;
  ++requests_;
  framing_ = {request.head.minor_version,
              request.head.keep_alive && requests_ < options().max_requests_per_connection &&
                  !close_after_reply_ && !shared_.stopping && !shared_.service.draining(),
              request.head.method == "HEAD"};
  // Answered as GET; the framing leaves the body out.
  if (framing_.head_only) request.head.method = "GET";
  phase_ = Phase::kAnswering;
  reply_sent_ = false;
  auto wake = [loop = loop_, weak = weak_from_this(),
               waits = std::make_shared<std::atomic<bool>>(false)] {
    if (waits->exchange(true)) return;  // an earlier wake-up is not handled yet
    asio::post(loop->context, [weak, waits] {
      waits->store(false);
      if (const auto self = weak.lock()) self->Run();
    });
  };
  HttpAnswer answer = shared_.service.serve(std::move(request), std::move(wake));
  if (const auto* reply = std::get_if<HttpReply>(&answer))
    QueueReply(*reply);
  else
    exchange_ = std::get<std::unique_ptr<HttpExchange>>(std::move(answer));
}

void HttpSession::QueueReply(const HttpReply& reply) {
  close_after_reply_ = close_after_reply_ || !framing_.keep_alive || reply.close ||
                       (reply.streams && framing_.minor_version == 0);
  framing_.keep_alive = !close_after_reply_;
  out_ += ReplyText(reply, framing_);
  turn_bytes_ += out_.size();
  reply_sent_ = true;
  ended_reply_ = !reply.streams || framing_.head_only;
  if (options().ping_interval.count() > 0) ping_ = reply.ping;
}

bool HttpSession::StepAnswering() {
  DS_CHECK(exchange_ != nullptr, "an answer is made by an exchange");
  if (!reply_sent_) {
    if (const auto reply = exchange_->Reply()) {
      QueueReply(*reply);
      return true;
    }
  } else {
    std::string bytes;
    const bool last = exchange_->Frames(&bytes);
    if (bytes.empty() && exchange_->IsBroken()) return Cut(), false;
    turn_bytes_ += bytes.size();
    AppendToBody(bytes);
    if (bytes.empty() && !last)
      BecomeSilent();
    else
      silent_ = false;
    if (last) {
      if (framing_.minor_version == 1) out_ += kLastChunk;
      ended_reply_ = true;
    }
    if (last || !out_.empty()) return true;
  }
  WantRead();  // to see the client go away
  return false;
}

void HttpSession::AppendToBody(std::string_view bytes) {
  if (framing_.minor_version == 1)
    AppendChunk(bytes, &out_);
  else
    out_ += bytes;
}

void HttpSession::BecomeSilent() {
  if (ping_.empty() || std::exchange(silent_, true)) return;
  silent_since_ = Clock::now();
  if (!ping_timer_waiting_) WaitToPing();
}

// One wait at a time: silence that began later is noticed when the earlier wait ends.
void HttpSession::WaitToPing() {
  ping_timer_.expires_at(silent_since_ + options().ping_interval);
  ping_timer_waiting_ = true;
  ping_timer_.async_wait([weak = weak_from_this()](ErrorCode error) {
    const auto self = weak.lock();
    if (!self || error) return;
    self->ping_timer_waiting_ = false;
    self->OnPingTimer();
  });
}

// A peer that has not taken the last bytes gets no more; WatchDelivery handles it.
void HttpSession::OnPingTimer() {
  if (!silent_ || phase_ != Phase::kAnswering) return;
  const bool due = Clock::now() >= silent_since_ + options().ping_interval;
  if (due) {
    silent_since_ = Clock::now();
    if (out_.empty()) AppendToBody(ping_);
  }
  WaitToPing();
  if (due) Run();
}

void HttpSession::FinishReply() {
  ended_reply_ = silent_ = knows_client_ = false;
  ping_.clear();
  std::string().swap(out_);  // an idle connection holds no buffer
  if (exchange_ != nullptr && exchange_->EndedWithError()) CountCut(HttpCut::kErrorEvent);
  exchange_.reset();
  if (close_after_reply_) return Linger();
  phase_ = Phase::kReading;
  reader_.Next();
}

// After this, no bytes of the peer are treated as requests.
void HttpSession::RefuseRequest(int status, std::string_view reason) {
  Disarm();
  SetIdle(false);
  const HttpHead head = reader_.HeadSoFar();
  DropLaterRequests();
  refused_body_bytes_ = head.chunked
                            ? options().limits.max_body_bytes
                            : std::min(head.content_length, options().limits.max_body_bytes);
  phase_ = Phase::kAnswering;
  framing_ = {1, false, head.method == "HEAD"};
  QueueReply(shared_.service.refuse(status, reason, head));
}

// The connection is still read, because only reading shows that the peer has left.
void HttpSession::DropLaterRequests() {
  dropping_ = true;
  close_after_reply_ = true;
  reader_.Discard();
}

// True if all of out_ is written.
bool HttpSession::Flush() {
  while (written_ < out_.size()) {
    ErrorCode error;
    const size_t n = socket_.write_some(
        asio::buffer(out_.data() + written_, out_.size() - written_), error);
    if (IsNotYet(error)) {
      WatchDelivery();
      WantWrite();
      WantRead();
      return false;
    }
    if (error) {
      Close();
      return false;
    }
    written_ += n;
    given_bytes_ += n;
  }
  out_.clear();
  written_ = 0;
  if (phase_ == Phase::kAnswering) WatchDelivery();
  return true;
}

// Watches delivery while bytes are on their way to the peer. The system's own limit
// (TCP_USER_TIMEOUT) would end the connection without notice to the peer.
void HttpSession::WatchDelivery() {
  if (armed_ == Timer::kWrite) return;
  last_delivery_ = Clock::now();
  Arm(Timer::kWrite, last_delivery_ + options().write_stall_timeout / 4);
}

void HttpSession::OnWatched() {
  const size_t undelivered = UndeliveredBytes();
  if (out_.empty() && undelivered == 0) return;
  if (!IsStalled(undelivered))
    return Arm(Timer::kWrite, Clock::now() + options().write_stall_timeout / 4);
  Log(LogLevel::kInfo, "http_reader_stalled",
      {{"unsent_bytes", std::to_string(out_.size() - written_)}});
  Cut();
}

// Whether the checks so far found no acknowledgement within the time limit.
bool HttpSession::IsStalled(size_t undelivered) {
  const Clock::time_point now = Clock::now();
  const uint64_t delivered = given_bytes_ - undelivered;
  if (delivered != std::exchange(delivered_bytes_, delivered)) last_delivery_ = now;
  return now - last_delivery_ >= options().write_stall_timeout;
}

// Half-closes and drops further bytes, so that a reset does not take the last reply from the peer.
void HttpSession::Linger() {
  phase_ = Phase::kLingering;
  dropping_ = true;
  ErrorCode ignored;
  socket_.shutdown(asio::socket_base::shutdown_send, ignored);
  last_delivery_ = Clock::now();
  Arm(Timer::kLinger, last_delivery_ + options().linger_timeout);
  WantRead();
}

// The peer has not closed the connection: waits only until the system has delivered everything.
void HttpSession::OnLingered() {
  const size_t undelivered = UndeliveredBytes();
  if (undelivered == 0 || IsStalled(undelivered)) return Close();
  Arm(Timer::kLinger, Clock::now() + options().linger_timeout);
}

// Written, and not yet acknowledged by the peer.
size_t HttpSession::UndeliveredBytes() {
  int bytes = 0;
  return ioctl(socket_.native_handle(), SIOCOUTQ, &bytes) == 0 && bytes > 0
             ? static_cast<size_t>(bytes)
             : 0;
}

void HttpSession::CountCut(HttpCut how) const {
  if (shared_.service.on_cut) shared_.service.on_cut(how);
}

// Ends the connection with a reset, so that a partial reply is not taken for a complete one.
void HttpSession::Cut() {
  if (phase_ == Phase::kAnswering) CountCut(HttpCut::kReset);
  ErrorCode ignored;
  socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  Close();
}

void HttpSession::Close() {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  const auto self = shared_from_this();
  exchange_.reset();  // cancels what is not finished
  Disarm();
  timer_.cancel();
  ErrorCode ignored;
  socket_.close(ignored);
  loop_->sessions.erase(self);
}

void HttpSession::WantRead() {
  if (reading_ || phase_ == Phase::kClosed) return;
  reading_ = true;
  socket_.async_wait(asio::socket_base::wait_read, [self = shared_from_this()](ErrorCode error) {
    self->reading_ = false;
    if (self->phase_ == Phase::kClosed) return;
    if (error) return self->Close();
    self->OnReadable();
  });
}

void HttpSession::WantWrite() {
  if (writing_) return;
  writing_ = true;
  socket_.async_wait(asio::socket_base::wait_write, [self = shared_from_this()](ErrorCode error) {
    self->writing_ = false;
    if (self->phase_ == Phase::kClosed) return;
    if (error) return self->Close();
    self->Run();
  });
}

void HttpSession::OnReadable() {
  ErrorCode error;
  const size_t n = socket_.read_some(asio::buffer(loop_->scratch), error);
  if (IsNotYet(error)) return WantRead();
  if (error) return Close();  // also the orderly end: the client no longer waits
  if (dropping_) {
    dropped_bytes_ += n;
    return dropped_bytes_ > kMaxDroppedBytes + refused_body_bytes_ ? Close() : WantRead();
  }
  reader_.Feed(std::string_view(loop_->scratch.data(), n));
  if (phase_ == Phase::kAnswering && reader_.waiting_bytes() > kMaxWaitingBytes)
    DropLaterRequests();
  if (!CountHeldBytes() && phase_ == Phase::kReading)
    RefuseRequest(503, "the requests being read take too much memory");
  if (phase_ == Phase::kAnswering) WantRead();
  Run();
}

// False if the client's requests, also those that are not answered yet, take more than its share.
bool HttpSession::CountHeldBytes() {
  const bool has_head = phase_ == Phase::kReading && reader_.state() != HttpReader::State::kHead;
  if (has_head && !std::exchange(knows_client_, true) && shared_.service.client)
    held_bytes_.SetClient(shared_.service.client(reader_.head(), peer_));
  const size_t answered = exchange_ == nullptr ? 0 : exchange_->HeldBytes();
  return held_bytes_.Set(reader_.held_bytes() + answered);
}

// One wait at a time: a postponed deadline is noticed when the earlier one has passed.
void HttpSession::Arm(Timer timer, Clock::time_point when) {
  const bool sooner = when < timer_end_;
  armed_ = timer;
  timer_end_ = when;
  if (timer_waiting_ && !sooner) return;
  timer_waiting_ = true;
  timer_.expires_at(when);
  timer_.async_wait([weak = weak_from_this()](ErrorCode error) {
    const auto self = weak.lock();
    if (!self || error || self->phase_ == Phase::kClosed) return;
    self->timer_waiting_ = false;
    self->OnTimer();
  });
}

void HttpSession::OnTimer() {
  if (armed_ == Timer::kNone) return;
  if (Clock::now() < timer_end_) return Arm(armed_, timer_end_);
  const Timer expired = std::exchange(armed_, Timer::kNone);
  if (expired == Timer::kBody || expired == Timer::kHead) {
    RefuseRequest(408, "the request arrived too slowly");
    return Run();
  }
  if (expired == Timer::kLinger) return OnLingered();
  if (expired == Timer::kWrite) return OnWatched();
  Close();
}

}  // namespace diffserve
