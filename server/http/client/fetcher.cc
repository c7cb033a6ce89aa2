// SPDX-License-Identifier: Apache-2.0
#include "server/http/client/fetcher.h"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <optional>
#include <utility>

namespace diffserve {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;

constexpr size_t kReadBytes = 16 << 10;
constexpr unsigned kHttpVersion = 11;

http::request<http::string_body> MakeRequest(const HttpFetcherOptions& options,
                                             const HttpRequestText& text) {
  http::request<http::string_body> request(http::string_to_verb(text.method), text.path,
                                           kHttpVersion);
  request.set(http::field::host, options.server.Authority());
  request.set(http::field::user_agent, "diffserve-chat");
  request.set(http::field::connection, "close");
  if (!options.api_key.empty())
    request.set(http::field::authorization, "Bearer " + options.api_key);
  if (!text.body.empty()) request.set(http::field::content_type, "application/json");
  request.body() = text.body;
  request.prepare_payload();
  return request;
}

// One request and its answer. Errors of the network are thrown, as Asio's coroutines do.
asio::awaitable<HttpOutcome> Exchange(const HttpFetcherOptions& options,
                                      const HttpRequestText& text,
                                      const HttpFetcher::TakeBody& take) {
  const auto executor = co_await asio::this_coro::executor;
  tcp::resolver resolver(executor);
  const auto addresses = co_await resolver.async_resolve(options.server.host, options.server.port,
                                                         asio::use_awaitable);
  beast::tcp_stream stream(executor);
  stream.expires_after(options.connect_timeout);
  co_await stream.async_connect(addresses, asio::use_awaitable);
  stream.expires_after(options.silence_timeout);
  http::request<http::string_body> request = MakeRequest(options, text);
  co_await http::async_write(stream, request, asio::use_awaitable);

  beast::flat_buffer buffer(kReadBytes);
  http::response_parser<http::string_body> parser;
  parser.body_limit(boost::none);  // no limit: data is passed on at once
  HttpOutcome outcome;
  while (!parser.is_done()) {
    stream.expires_after(options.silence_timeout);
    co_await http::async_read_some(stream, buffer, parser, asio::use_awaitable);
    if (!parser.is_header_done()) continue;
    outcome.status = parser.get().result_int();
    const std::string piece = std::exchange(parser.get().body(), {});
    if (outcome.status == static_cast<int>(http::status::ok)) {
      if (!piece.empty() && !take(piece)) break;
    } else {
      outcome.error_body += piece;
      if (outcome.error_body.size() > options.max_error_bytes) break;
    }
  }
  co_return outcome;
}

}  // namespace

Result<HttpOutcome> HttpFetcher::Ask(const HttpRequestText& request, const TakeBody& take,
                                     const std::stop_token& stop) const {
  asio::io_context context(1);
  std::optional<HttpOutcome> outcome;
  std::string error;
  asio::co_spawn(context, Exchange(options_, request, take),
                 [&](const std::exception_ptr& thrown, HttpOutcome found) {
                   if (thrown == nullptr) {
                     outcome = std::move(found);
                     return;
                   }
                   try {
                     std::rethrow_exception(thrown);
                   } catch (const boost::system::system_error& caught) {
                     error = caught.code().message();
                   }
                 });
  const std::stop_callback on_stop(stop, [&] { context.stop(); });
  context.run();
  if (outcome) return *std::move(outcome);
  if (!error.empty()) {
    return Status(StatusCode::kUnavailable, "http://" + options_.server.Authority() + ": " + error);
  }
  return Status(StatusCode::kCancelled, "stopped");
}

}  // namespace diffserve
