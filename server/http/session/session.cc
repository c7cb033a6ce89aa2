// SPDX-License-Identifier: Apache-2.0
#include "server/http/session/session.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <string>
#include <utility>

#include "kernels/process/check.h"
#include "kernels/process/log.h"
#include "server/http/peer_address.h"
#include "server/http/session/not_yet.h"

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
  timer_.OnExpiry(weak_from_this(), [this] { OnTimer(); });
  ping_timer_.OnExpiry(weak_from_this(), [this] { OnSilence(); });
  entry_->OnEnd([loop = loop_, weak = weak_from_this()] {
    asio::post(loop->context, [weak] {
      if (const auto self = weak.lock()) self->EndIfIdle();
    });
  });
  Run();
}

void HttpSession::Stop(HttpEnding ending) {
  close_after_reply_ = true;
  const bool idle = phase_ == Phase::kLingering || (phase_ == Phase::kReading && writer_.empty());
  if (ending == HttpEnding::kNow) return idle ? Close() : Cut();
  if (idle && UndeliveredNow() == 0) return Close();
  if (phase_ == Phase::kReading && idle) return Linger();
  if (ending == HttpEnding::kWithError && writer_.is_begun() && exchange_ != nullptr &&
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
  if (!writer_.empty() && !Flush()) return false;
  if (phase_ == Phase::kClosed) return false;
  if (writer_.is_whole()) {
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
    writer_.QueueInterim("HTTP/1.1 100 Continue\r\n\r\n");
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
  const ReadDeadline::Part part = ReadDeadline::PartOf(reader_);
  if (part == ReadDeadline::Part::kIdle && armed_ == Timer::kIdle) return;
  const auto deadline = read_deadline_.Of(reader_, options(), requests_ == 0);
  switch (part) {
    case ReadDeadline::Part::kIdle:
      return Arm(Timer::kIdle, deadline);
    case ReadDeadline::Part::kHead:
    case ReadDeadline::Part::kBody:
      return Arm(Timer::kRequest, deadline);
  }
}

void HttpSession::Dispatch() {
  Disarm();
  SetIdle(false);
  read_deadline_.Reset();
  HttpRequest request = reader_.Take();
  request.peer = peer_;
  request.upstream = &loop_->upstream;
  ++requests_;
  writer_.Begin({request.head.minor_version,
                 request.head.keep_alive && requests_ < options().max_requests_per_connection &&
                     !close_after_reply_ && !shared_->stopping && !shared_->service.draining(),
                 request.head.method == "HEAD"});
  // Answered as GET; the framing leaves the body out.
  if (writer_.head_only()) request.head.method = "GET";
  phase_ = Phase::kAnswering;
  HttpAnswer answer = shared_->service.serve(std::move(request), Wake());
  if (const auto* reply = std::get_if<HttpReply>(&answer))
    QueueReply(*reply);
  else
    exchange_ = std::get<std::unique_ptr<HttpExchange>>(std::move(answer));
}

std::function<void()> HttpSession::Wake() {
  return
      [loop = loop_, weak = weak_from_this(), waits = std::make_shared<std::atomic<bool>>(false)] {
        if (waits->exchange(true)) return;  // an earlier wake-up is not handled yet
        asio::post(loop->context, [weak, waits] {
          waits->store(false);
          if (const auto self = weak.lock()) self->Run();
        });
      };
}

void HttpSession::QueueReply(const HttpReply& reply) {
  const size_t before = writer_.unsent_bytes();
  close_after_reply_ = writer_.Queue(reply, close_after_reply_);
  turn_bytes_ += writer_.unsent_bytes() - before;
  if (options().ping_interval.count() > 0) ping_ = reply.ping;
}

bool HttpSession::StepAnswering() {
  DS_CHECK(exchange_ != nullptr, "an answer is made by an exchange");
  if (!writer_.is_begun()) {
    if (const auto reply = exchange_->Reply()) {
      QueueReply(*reply);
      return true;
    }
  } else {
    TakeFrames();
    if (phase_ == Phase::kClosed) return false;
    if (writer_.is_whole() || !writer_.empty()) return true;
  }
  WantRead();  // to see the client go away
  return false;
}

void HttpSession::TakeFrames() {
  std::string bytes;
  const bool last = exchange_->Frames(&bytes);
  if (bytes.empty() && exchange_->IsBroken()) return Cut();
  turn_bytes_ += bytes.size();
  writer_.AppendToBody(bytes);
  const bool is_silent = bytes.empty() && !last;
  if (!is_silent)
    ping_timer_.Disarm();
  else if (!ping_.empty() && !ping_timer_.is_armed())
    ping_timer_.Arm(Clock::now() + options().ping_interval);
  if (last) writer_.EndBody();
}

// A peer that has not taken the last bytes gets no more; WatchDelivery handles it.
void HttpSession::OnSilence() {
  if (phase_ != Phase::kAnswering) return;
  if (writer_.empty()) writer_.AppendToBody(ping_);
  ping_timer_.Arm(Clock::now() + options().ping_interval);
  Run();
}

void HttpSession::FinishReply() {
  ping_timer_.Disarm();
  ping_.clear();
  writer_.Finish();
  knows_client_ = false;
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
  *bytes_to_drop_ += head.chunked ? options().limits.max_body_bytes
                                  : std::min(head.content_length, options().limits.max_body_bytes);
  phase_ = Phase::kAnswering;
  writer_.Begin({1, false, head.method == "HEAD"});
  QueueReply(shared_->service.refuse(status, reason, head));
}

// The connection is still read, because only reading shows that the peer has left.
void HttpSession::DropLaterRequests() {
  bytes_to_drop_ = bytes_to_drop_.value_or(kMaxDroppedBytes);
  close_after_reply_ = true;
  reader_.Discard();
}

// True if all that was queued is written.
bool HttpSession::Flush() {
  switch (writer_.Write(socket_, delivery_)) {
    case ReplyWriter::Written::kAll:
      if (phase_ == Phase::kAnswering) WatchDelivery();
      return true;
    case ReplyWriter::Written::kNotYet:
      WatchDelivery();
      WantWrite();
      WantRead();
      return false;
    case ReplyWriter::Written::kFailed:
      break;
  }
  Close();
  return false;
}

// Watches delivery while bytes are on their way to the peer.
void HttpSession::WatchDelivery() {
  if (armed_ == Timer::kWrite) return;
  delivery_.Begin(Clock::now());
  Arm(Timer::kWrite, Clock::now() + options().write_stall_timeout / 4);
}

void HttpSession::OnWatched() {
  const size_t undelivered = UndeliveredNow();
  if (writer_.empty() && undelivered == 0) return;
  if (!delivery_.IsStalled(undelivered, Clock::now()))
    return Arm(Timer::kWrite, Clock::now() + options().write_stall_timeout / 4);
  Log(LogLevel::kInfo, "http_reader_stalled",
      {{"unsent_bytes", std::to_string(writer_.unsent_bytes())}});
  Cut();
}

// Half-closes and drops further bytes, so that a reset does not take the last reply from the peer.
void HttpSession::Linger() {
  phase_ = Phase::kLingering;
  bytes_to_drop_ = bytes_to_drop_.value_or(kMaxDroppedBytes);
  ErrorCode ignored;
  socket_.shutdown(asio::socket_base::shutdown_send, ignored);
  delivery_.Begin(Clock::now());
  Arm(Timer::kLinger, Clock::now() + options().linger_timeout);
  WantRead();
}

// The peer has not closed the connection: waits only until the system has delivered everything.
void HttpSession::OnLingered() {
  const size_t undelivered = UndeliveredNow();
  if (undelivered == 0 || delivery_.IsStalled(undelivered, Clock::now())) return Close();
  Arm(Timer::kLinger, Clock::now() + options().linger_timeout);
}

void HttpSession::CountCut(HttpCut how) const {
  if (shared_->service.on_cut) shared_->service.on_cut(how);
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
  armed_ = Timer::kNone;
  timer_.Cancel();
  ping_timer_.Cancel();
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
  if (bytes_to_drop_) {
    if (n > *bytes_to_drop_) return Close();
    *bytes_to_drop_ -= n;
    return WantRead();
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
  if (has_head && !std::exchange(knows_client_, true) && shared_->service.client)
    held_bytes_.SetClient(shared_->service.client(reader_.head(), peer_));
  const size_t answered = exchange_ == nullptr ? 0 : exchange_->HeldBytes();
  return held_bytes_.Set(reader_.held_bytes() + answered);
}

void HttpSession::Arm(Timer timer, Clock::time_point when) {
  armed_ = timer;
  timer_.Arm(when);
}

void HttpSession::Disarm() {
  armed_ = Timer::kNone;
  timer_.Disarm();
}

void HttpSession::OnTimer() {
  switch (std::exchange(armed_, Timer::kNone)) {
    case Timer::kRequest:
      RefuseRequest(408, "the request arrived too slowly");
      return Run();
    case Timer::kLinger:
      return OnLingered();
    case Timer::kWrite:
      return OnWatched();
    case Timer::kIdle:
      return Close();
    case Timer::kNone:
      return;
  }
}

}  // namespace diffserve
