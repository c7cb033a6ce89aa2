#include "server/http/loop.h"

#include <netinet/tcp.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/log.h"
#include "kernels/base/thread_registry.h"
#include "server/http/reader.h"
#include "server/http/reply_text.h"

namespace diffserve {
namespace {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr size_t kScratchBytes = 64 << 10;     // one read, a thread
constexpr size_t kMaxWaitingBytes = 64 << 10;  // of later requests, before the connection is read
                                               // no further
constexpr size_t kMaxLingerBytes = 1 << 20;    // dropped while the peer reads the last reply

class Session;

// Sessions and scratch belong to the loop's thread alone.
struct Loop {
  asio::io_context context{1};
  std::vector<char> scratch = std::vector<char>(kScratchBytes);
  std::unordered_set<std::shared_ptr<Session>> sessions;
};

// One connection. A loop of small steps; each either makes progress or has asked to be woken.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, std::shared_ptr<Loop> loop, std::shared_ptr<HttpShared> shared)
      : socket_(std::move(socket)),
        timer_(loop->context),
        loop_(std::move(loop)),
        owner_(std::move(shared)),
        shared_(*owner_),
        reader_(shared_.options.limits) {}
  ~Session() {
    shared_.held_bytes -= counted_bytes_;
    shared_.ConnectionEnded();
  }

  void Start();
  // Ends it as soon as no reply is being made, or now.
  void Stop(bool now);

 private:
  enum class Phase { kReading, kAnswering, kLingering, kClosed };
  enum class Timer { kNone, kHead, kIdle, kBody, kWrite, kLinger };

  const HttpServerOptions& options() const { return shared_.options; }
  void Run();
  bool Step();
  bool StepReading();
  bool StepAnswering();
  bool Flush();
  void Dispatch();
  void QueueReply(const HttpReply& reply);
  void FinishReply();
  void RefuseRequest(int status, std::string_view reason);
  void Linger();
  void Close();

  void WantRead();
  void WantWrite();
  void OnReadable();
  void Arm(Timer timer, Clock::time_point when);
  void Disarm() { armed_ = Timer::kNone; }
  void OnTimer();
  void ArmForReading();
  void CountHeldBytes();

  tcp::socket socket_;
  asio::steady_timer timer_;
  const std::shared_ptr<Loop> loop_;
  const std::shared_ptr<HttpShared> owner_;
  HttpShared& shared_;
  HttpReader reader_;
  Phase phase_ = Phase::kReading;
  std::unique_ptr<HttpExchange> exchange_;
  bool reply_sent_ = false;  // of the exchange: its head is queued
  ReplyFraming framing_;
  bool close_after_reply_ = false;
  bool ended_reply_ = false;  // all of the reply is in out_
  std::string out_;           // to be written
  size_t written_ = 0;
  int requests_ = 0;
  bool reading_ = false, writing_ = false;  // a readiness wait is under way
  bool running_ = false;
  Timer armed_ = Timer::kNone;
  Clock::time_point timer_end_;
  bool timer_waiting_ = false;
  Clock::time_point head_begin_, body_begin_;
  size_t counted_bytes_ = 0;
  size_t lingered_bytes_ = 0;
};

void Session::Start() {
  ErrorCode ignored;
  socket_.non_blocking(true, ignored);
  socket_.set_option(tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
  if (options().send_buffer_bytes > 0) {
    socket_.set_option(asio::socket_base::send_buffer_size(options().send_buffer_bytes), ignored);
  }
  const auto user_timeout_ms = static_cast<unsigned>(options().write_stall_timeout.count());
  setsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout_ms,
             sizeof(user_timeout_ms));
  head_begin_ = Clock::now();
  Run();
}

void Session::Stop(bool now) {
  close_after_reply_ = true;
  const bool idle = phase_ == Phase::kReading && out_.empty();
  if (now || idle || phase_ == Phase::kLingering) Close();
}

void Session::Run() {
  if (running_) return;  // called from within a step; the loop below goes on
  running_ = true;
  while (phase_ != Phase::kClosed && Step()) {
  }
  running_ = false;
}

// False if it waits for the peer, for `wake`, or for nothing any more.
bool Session::Step() {
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

bool Session::StepReading() {
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

void Session::ArmForReading() {
  if (reader_.state() == HttpReader::State::kBody) {
    if (body_begin_ == Clock::time_point()) body_begin_ = Clock::now();
    const auto earned = std::chrono::milliseconds(1000 * reader_.body_bytes_received() /
                                                  options().body_bytes_per_second);
    Arm(Timer::kBody, body_begin_ + options().body_grace + earned);
  } else if (reader_.idle() && requests_ > 0) {
    head_begin_ = {};
    if (armed_ != Timer::kIdle) Arm(Timer::kIdle, Clock::now() + options().idle_timeout);
  } else {
    if (head_begin_ == Clock::time_point()) head_begin_ = Clock::now();
    Arm(Timer::kHead, head_begin_ + options().head_timeout);
  }
}

void Session::Dispatch() {
  Disarm();
  body_begin_ = head_begin_ = {};
  HttpRequest request = reader_.Take();
  ++requests_;
  framing_ = {request.head.minor_version,
              request.head.keep_alive && requests_ < options().max_requests_per_connection &&
                  !close_after_reply_ && !shared_.stopping && !shared_.service.draining(),
              request.head.method == "HEAD"};
  CountHeldBytes();
  phase_ = Phase::kAnswering;
  reply_sent_ = false;
  auto wake = [loop = loop_, weak = weak_from_this()] {
    asio::post(loop->context, [weak] {
      if (const auto self = weak.lock()) self->Run();
    });
  };
  try {
    HttpAnswer answer = shared_.service.serve(std::move(request), std::move(wake));
    if (const auto* reply = std::get_if<HttpReply>(&answer))
      QueueReply(*reply);
    else
      exchange_ = std::get<std::unique_ptr<HttpExchange>>(std::move(answer));
  } catch (const std::exception&) {  // only memory can run out here
    Log(LogLevel::kError, "http_request_failed");
    QueueReply(shared_.service.refuse(500, "the request could not be handled"));
  }
}

void Session::QueueReply(const HttpReply& reply) {
  close_after_reply_ = close_after_reply_ || !framing_.keep_alive || reply.close ||
                       (reply.streams && framing_.minor_version == 0);
  framing_.keep_alive = !close_after_reply_;
  out_ += ReplyText(reply, framing_);
  reply_sent_ = true;
  ended_reply_ = !reply.streams;
}

bool Session::StepAnswering() {
  DS_CHECK(exchange_ != nullptr, "an answer is made by an exchange");
  if (!reply_sent_) {
    if (const auto reply = exchange_->Reply()) {
      QueueReply(*reply);
      return true;
    }
  } else {
    std::string bytes;
    const bool last = exchange_->Frames(&bytes);
    if (framing_.minor_version == 1)
      AppendChunk(bytes, &out_);
    else
      out_ += bytes;
    if (last) {
      if (framing_.minor_version == 1) out_ += kLastChunk;
      ended_reply_ = true;
    }
    if (last || !out_.empty()) return true;
  }
  WantRead();  // to see the client go away
  return false;
}

void Session::FinishReply() {
  ended_reply_ = false;
  exchange_.reset();
  if (close_after_reply_) return Linger();
  phase_ = Phase::kReading;
  reader_.Next();
  CountHeldBytes();
}

// After it nothing that the peer has sent is trusted to be a request.
void Session::RefuseRequest(int status, std::string_view reason) {
  Disarm();
  reader_.Discard();
  CountHeldBytes();
  phase_ = Phase::kAnswering;
  framing_ = {1, false, false};
  close_after_reply_ = true;
  QueueReply(shared_.service.refuse(status, reason));
}

// True if all of out_ is written.
bool Session::Flush() {
  while (written_ < out_.size()) {
    ErrorCode error;
    const size_t n = socket_.write_some(
        asio::buffer(out_.data() + written_, out_.size() - written_), error);
    if (error == asio::error::would_block || error == asio::error::try_again) {
      if (armed_ != Timer::kWrite) Arm(Timer::kWrite, Clock::now() + options().write_stall_timeout);
      WantWrite();
      WantRead();
      return false;
    }
    if (error) {
      Close();
      return false;
    }
    written_ += n;
    if (armed_ == Timer::kWrite) Disarm();
  }
  out_.clear();
  written_ = 0;
  return true;
}

// Half-closes and drops what still comes, so that a reset does not take the last reply from the
// peer.
void Session::Linger() {
  phase_ = Phase::kLingering;
  ErrorCode ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  Arm(Timer::kLinger, Clock::now() + options().linger_timeout);
  WantRead();
}

void Session::Close() {
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

void Session::WantRead() {
  if (reading_ || phase_ == Phase::kClosed || reader_.waiting_bytes() > kMaxWaitingBytes) return;
  reading_ = true;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](ErrorCode error) {
    self->reading_ = false;
    if (self->phase_ == Phase::kClosed) return;
    if (error) return self->Close();
    self->OnReadable();
  });
}

void Session::WantWrite() {
  if (writing_) return;
  writing_ = true;
  socket_.async_wait(tcp::socket::wait_write, [self = shared_from_this()](ErrorCode error) {
    self->writing_ = false;
    if (self->phase_ == Phase::kClosed) return;
    if (error) return self->Close();
    self->Run();
  });
}

void Session::OnReadable() {
  ErrorCode error;
  const size_t n = socket_.read_some(asio::buffer(loop_->scratch), error);
  if (error == asio::error::would_block || error == asio::error::try_again) return WantRead();
  if (error) return Close();  // also the orderly end: nobody waits for an answer any more
  if (phase_ == Phase::kLingering) {
    lingered_bytes_ += n;
    if (lingered_bytes_ > kMaxLingerBytes) return Close();
    return WantRead();
  }
  reader_.Feed(std::string_view(loop_->scratch.data(), n));
  CountHeldBytes();
  if (phase_ == Phase::kReading && shared_.held_bytes > options().max_held_bytes) {
    RefuseRequest(503, "the requests being read take too much memory");
  }
  if (phase_ == Phase::kAnswering) WantRead();
  Run();
}

void Session::CountHeldBytes() {
  const size_t held = reader_.held_bytes();
  shared_.held_bytes += held - counted_bytes_;  // may wrap, and wraps back
  counted_bytes_ = held;
}

// One wait at a time: a deadline that moves away is seen when the earlier one has passed.
void Session::Arm(Timer timer, Clock::time_point when) {
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

void Session::OnTimer() {
  if (armed_ == Timer::kNone) return;
  if (Clock::now() < timer_end_) return Arm(armed_, timer_end_);
  const Timer expired = std::exchange(armed_, Timer::kNone);
  if (expired == Timer::kBody || (expired == Timer::kHead && !reader_.idle())) {
    RefuseRequest(408, "the request came too slowly");
    return Run();
  }
  if (expired == Timer::kWrite)
    Log(LogLevel::kInfo, "http_reader_stalled",
        {{"unsent_bytes", std::to_string(out_.size() - written_)}});
  Close();
}

}  // namespace

void HttpShared::ConnectionEnded() {
  --connections;
  std::lock_guard lock(mutex);
  ended.notify_all();
  if (on_ended) on_ended();
}

struct HttpLoop::Impl {
  std::shared_ptr<HttpShared> shared;
  // Also held by those who may still wake a session of it.
  std::shared_ptr<Loop> loop = std::make_shared<Loop>();
  std::thread thread;
};

HttpLoop::HttpLoop(std::shared_ptr<HttpShared> shared) : impl_(std::make_unique<Impl>()) {
  impl_->shared = std::move(shared);
  impl_->thread = std::thread([loop = impl_->loop] {
    const NamedThread named("http", "the network");
    const auto work = asio::make_work_guard(loop->context);
    loop->context.run();
  });
}

HttpLoop::~HttpLoop() {
  asio::io_context& context = impl_->loop->context;
  context.stop();
  impl_->thread.join();
  // What is still queued holds sessions, and they hold the loop: it is run to its end here.
  context.restart();
  StopSessions(/*now=*/true);
  context.poll();
}

void HttpLoop::Adopt(int socket_fd, bool ipv6) {
  ++impl_->shared->connections;
  tcp::socket socket(impl_->loop->context, ipv6 ? tcp::v6() : tcp::v4(), socket_fd);
  auto session = std::make_shared<Session>(std::move(socket), impl_->loop, impl_->shared);
  asio::post(impl_->loop->context, [loop = impl_->loop, session] {
    loop->sessions.insert(session);
    session->Start();
  });
}

void HttpLoop::StopSessions(bool now) {
  asio::post(impl_->loop->context, [loop = impl_->loop, now] {
    const std::vector<std::shared_ptr<Session>> sessions(loop->sessions.begin(),
                                                         loop->sessions.end());
    for (const auto& session : sessions) session->Stop(now);
  });
}

}  // namespace diffserve
