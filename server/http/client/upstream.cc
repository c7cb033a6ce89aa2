// SPDX-License-Identifier: Apache-2.0
#include "server/http/client/upstream.h"

#include <algorithm>
#include <array>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <utility>

#include "server/http/client/upstream_connections.h"

namespace diffserve {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr size_t kMaxUntakenBytes = 64 << 10;
constexpr size_t kMaxWholeBytes = 1 << 20;

// Not passed on: fields of one connection, of the framing, and those that a reply's writer adds.
constexpr std::string_view kOwnRequestFields[] = {
    "connection", "content-length",   "expect",  "host",    "keep-alive",
    "te",         "proxy-connection", "trailer", "upgrade", "transfer-encoding"};
constexpr std::string_view kOwnReplyFields[] = {
    "connection", "content-length", "content-type", "date", "keep-alive", "transfer-encoding"};

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return lower;
}

// Connection names further fields of one connection. As ",NAME,NAME,", in lower case.
std::string NamedByConnection(const HttpHead& head) {
  std::string names = ",";
  for (const auto& [name, value] : head.fields)
    if (name == "connection") names += Lower(value) + ",";
  std::erase_if(names, [](char c) { return c == ' ' || c == '\t'; });
  return names;
}

std::string HeadText(const UpstreamRequest& request) {
  const HttpHead& head = request.head;
  std::string text = head.method + " " + head.path;
  if (!head.query.empty()) text += "?" + head.query;
  text += " HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(request.port) + "\r\n";
  const std::string named = NamedByConnection(head);
  for (const auto& [name, value] : head.fields) {
    if (std::ranges::find(kOwnRequestFields, name) == std::end(kOwnRequestFields) &&
        named.find("," + name + ",") == std::string::npos)
      text += name + ": " + value + "\r\n";
  }
  for (const auto& [name, value] : request.own_fields) text += name + ": " + value + "\r\n";
  if (!request.body.empty() || head.method == "POST")
    text += "Content-Length: " + std::to_string(request.body.size()) + "\r\n";
  return text + "\r\n";
}

}  // namespace

struct UpstreamCall::Impl : std::enable_shared_from_this<Impl> {
  Impl(UpstreamConnections& connections, UpstreamRequest request, std::function<void()> wake)
      : connections(connections),
        port(request.port),
        request_head(HeadText(request)),
        request_body(std::move(request.body)),
        wake(std::move(wake)),
        connection{tcp::socket(connections.loop())},
        timer(connections.loop()) {
    parser.body_limit(boost::none);  // its bytes are passed on at once
  }

  void Start(std::chrono::milliseconds timeout);
  void Write();
  void Read();
  void OnRead(const ErrorCode& error);
  void Fail(const ErrorCode& error);
  void Close();
  HttpReply MakeReply();

  UpstreamConnections& connections;
  const int port;
  std::string request_head, request_body;  // empty once they are written
  const std::function<void()> wake;
  UpstreamConnections::Connection connection;
  asio::steady_timer timer;
  boost::beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  std::string untaken;  // of the body
  bool reading = false;
  bool reply_taken = false;
  bool head_done = false;  // the head has arrived
  bool whole = false;      // the reply has its whole body
  bool done = false;       // the body is complete
  bool closed = false;     // the owner has gone, or the call has ended
  Status failure;
};

void UpstreamCall::Impl::Start(std::chrono::milliseconds timeout) {
  const auto self = shared_from_this();
  if (timeout.count() > 0) {
    timer.expires_after(timeout);
    timer.async_wait([weak = weak_from_this()](const ErrorCode& error) {
      const auto call = weak.lock();
      if (call != nullptr && !error && !call->closed) call->Fail(asio::error::timed_out);
    });
  }
  if (auto idle = connections.Take(port)) {
    connection = *std::move(idle);
    return Write();
  }
  const tcp::endpoint server(asio::ip::address_v4::loopback(), static_cast<unsigned short>(port));
  connection.socket.async_connect(server, [self](const ErrorCode& error) {
    if (self->closed) return;
    if (error) return self->Fail(error);
    ErrorCode ignored;
    self->connection.socket.set_option(tcp::no_delay(true), ignored);
    self->Write();
  });
}

// The reply is read meanwhile, because a server may refuse a request before it has read it.
void UpstreamCall::Impl::Write() {
  ++connection.calls;
  const std::array<asio::const_buffer, 2> request = {asio::buffer(request_head),
                                                     asio::buffer(request_body)};
  asio::async_write(connection.socket, request,
                    [self = shared_from_this()](const ErrorCode&, size_t) {
                      // A failure shows in the read. An assignment would keep the memory.
                      std::string().swap(self->request_head);
                      std::string().swap(self->request_body);
                      if (!self->closed) self->wake();  // it holds fewer bytes
                    });
  Read();
}

void UpstreamCall::Impl::Read() {
  if (reading || closed || done || (!whole && untaken.size() >= kMaxUntakenBytes)) return;
  reading = true;
  http::async_read_some(connection.socket, buffer, parser,
                        [self = shared_from_this()](const ErrorCode& error, size_t) {
                          self->reading = false;
                          if (!self->closed) self->OnRead(error);
                        });
}

void UpstreamCall::Impl::OnRead(const ErrorCode& error) {
  if (error) return Fail(error);
  if (parser.is_header_done()) {
    if (!std::exchange(head_done, true)) {
      const auto length = parser.content_length();
      whole = length ? *length <= kMaxWholeBytes : parser.is_done() && !parser.chunked();
    }
    untaken += std::exchange(parser.get().body(), {});
    done = parser.is_done();
  }
  if (done) {
    timer.cancel();
    if (parser.keep_alive() && buffer.size() == 0 && request_head.empty()) {
      closed = true;
      connections.Give(port, std::move(connection));
    } else {
      Close();
    }
  }
  if (head_done && (!whole || done)) wake();
  Read();
}

void UpstreamCall::Impl::Fail(const ErrorCode& error) {
  failure = Status(StatusCode::kUnavailable, error.message());
  Close();
  wake();
}

void UpstreamCall::Impl::Close() {
  closed = true;
  timer.cancel();
  ErrorCode ignored;
  connection.socket.close(ignored);
}

// REQUIRES: the head has arrived, and the whole body if the reply is whole.
HttpReply UpstreamCall::Impl::MakeReply() {
  reply_taken = true;
  HttpReply reply;
  const auto& head = parser.get();
  reply.status = static_cast<int>(head.result_int());
  reply.content_type = std::string(head[http::field::content_type]);
  for (const auto& field : head) {
    const std::string_view name(field.name_string().data(), field.name_string().size());
    if (std::ranges::find(kOwnReplyFields, Lower(name)) == std::end(kOwnReplyFields))
      reply.fields.emplace_back(name, std::string(field.value()));
  }
  reply.streams = !whole;
  if (whole) reply.body = std::exchange(untaken, {});
  return reply;
}

UpstreamCall::UpstreamCall(UpstreamConnections& connections, UpstreamRequest request,
                           std::function<void()> wake) {
  const std::chrono::milliseconds timeout = request.timeout;
  impl_ = std::make_shared<Impl>(connections, std::move(request), std::move(wake));
  impl_->Start(timeout);
}

UpstreamCall::~UpstreamCall() {
  if (!impl_->closed) impl_->Close();
}

std::optional<Result<HttpReply>> UpstreamCall::Reply() {
  if (impl_->reply_taken) return std::nullopt;
  if (impl_->head_done && (!impl_->whole || impl_->done)) return impl_->MakeReply();
  if (!impl_->failure.ok()) return impl_->failure;
  return std::nullopt;
}

bool UpstreamCall::Frames(std::string* bytes) {
  *bytes += std::exchange(impl_->untaken, {});
  if (!impl_->done) impl_->Read();
  return impl_->done;
}

size_t UpstreamCall::HeldBytes() const {
  return impl_->request_head.size() + impl_->request_body.size();
}

bool UpstreamCall::IsBroken() const { return !impl_->failure.ok(); }

}  // namespace diffserve
