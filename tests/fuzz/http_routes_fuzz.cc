// SPDX-License-Identifier: Apache-2.0
// Whole HTTP requests: reader, gate, routes, OpenAI's bodies, frontend and engine, over an executor
// without a model. Bit 0 of the first byte asks for a server with keys and loopback names; bit 1
// lets the client leave before its answer. The rest is what the client sends. Each request gets one
// well-formed reply, whatever was asked, and is counted once.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "kernels/process/check.h"
#include "kernels/process/log.h"
#include "server/api/door/front_door.h"
#include "server/app/server.h"
#include "server/http/reader.h"
#include "tests/testing/engine/fake_executor.h"
#include "tests/testing/kernels/source_directory.h"

namespace diffserve {
namespace {

using Json = nlohmann::json;

constexpr char kKey[] = "key-of-the-fuzzed-server";
constexpr int kMaxRequests = 8;  // of one input

// Small, so that what is asked for is soon there.
ServerOptions Options() {
  ServerOptions options;
  options.engine = {.page_size = 16, .num_pages = 64, .max_model_len = 64};
  options.engine.max_waiting_requests = 16;
  options.frontend.names.name = "tiny";
  return options;
}

ServerParts Parts() {
  ServerParts parts;
  parts.tokenizer = Tokenizer::Load(SourceDirectory() + "/tests/text/data/byte_bpe").value();
  parts.chat_template = ChatTemplate::Load(SourceDirectory() + "/models/demo/diff").value();
  parts.config.vocab_size = parts.tokenizer->vocab_size();
  return parts;
}

// A server that listens nowhere, and two sets of routes over it.
struct FuzzedServer {
  FuzzedServer()
      : server(Options(), Parts(), std::make_unique<testing::FakeExecutor>(Options().engine)),
        keys(ApiKeys::FromText(kKey, "keys").value()),
        open(Routes(false), server.frontend(), server.health(), no_keys),
        locked(Routes(true), server.frontend(), server.health(), keys) {}

  HttpRoutesOptions Routes(bool loopback_hosts_only) {
    HttpRoutesOptions routes;
    routes.loopback_hosts_only = loopback_hosts_only;
    routes.metrics_text = [this] { return server.metrics().Render(); };
    routes.on_reply = [this](std::string_view, int) { ++replies; };
    return routes;
  }

  std::atomic<int> replies = 0;
  Server server;
  ApiKeys no_keys, keys;
  HttpRoutes open, locked;
};

// What a connection is woken by.
class Wakes {
 public:
  void Wake() {
    std::lock_guard lock(mutex_);
    woken_ = true;
    changed_.notify_one();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    DS_CHECK(changed_.wait_for(lock, std::chrono::seconds(20), [&] { return woken_; }),
             "every request is answered");
    woken_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool woken_ = false;
};

void CheckEvents(std::string_view body) {
  bool ended = false;
  while (!body.empty()) {
    std::string_view name;
    if (body.starts_with("event: ")) {
      name = body.substr(7, body.find('\n') - 7);
      body.remove_prefix(std::min(body.size(), 7 + name.size() + 1));
    }
    const size_t end = body.find("\n\n");
    DS_CHECK(body.starts_with("data: ") && end != body.npos && !ended, "a body is whole events");
    const std::string_view data = body.substr(6, end - 6);
    body.remove_prefix(end + 2);
    ended = data == "[DONE]" || name == "message_stop" || name == "response.completed" ||
            name == "response.incomplete" || name == "response.failed";
    DS_CHECK(data == "[DONE]" || Json::accept(data), "an event is JSON");
    ended = ended || Json::parse(data).contains("error");
  }
  DS_CHECK(ended, "a stream has an end");
}

void CheckReply(const HttpReply& reply, const std::string& body) {
  DS_CHECK(reply.status >= 200 && reply.status < 600 && reply.status != 500, "a status");
  for (const auto& [name, value] : reply.fields) {
    DS_CHECK(std::ranges::none_of(name + value, [](unsigned char c) { return c < 32 || c == 127; }),
             "a field is one line");
  }
  if (reply.streams) return CheckEvents(body);
  if (reply.content_type != "application/json" || reply.status == 204) return;
  const Json json = Json::parse(body, nullptr, false);
  DS_CHECK(json.is_object() || (json.is_array() && reply.status == 200), "a body is JSON");
  DS_CHECK(reply.status == 200 || !json.at("error").at("message").get<std::string>().empty(),
           "an error says what is wrong");
}

// The whole answer, or as much as there is at once if the client leaves.
void TakeAnswer(HttpAnswer answer, Wakes& wakes, bool leaves) {
  if (const auto* whole = std::get_if<HttpReply>(&answer)) return CheckReply(*whole, whole->body);
  HttpExchange& exchange = *std::get<std::unique_ptr<HttpExchange>>(answer);
  std::optional<HttpReply> reply = exchange.Reply();
  for (; !reply && !leaves; reply = exchange.Reply()) wakes.Wait();
  if (!reply) return;
  std::string body = reply->body;
  while (reply->streams) {
    const size_t before = body.size();
    if (exchange.Frames(&body)) break;
    if (leaves) return;
    if (body.size() == before) wakes.Wait();
  }
  CheckReply(*reply, body);
}

bool HoldsKey(const HttpHead& head) {
  return std::ranges::any_of(
      head.fields, [](const auto& field) { return field.second.find(kKey) != std::string::npos; });
}

bool NeedsKey(const HttpRoutes& server, const HttpHead& head) {
  return std::ranges::none_of(server.routes(), [&](const auto& route) {
    return route.path == head.path && !route.needs_key;
  });
}

void TakeRequest(HttpRoutes& routes, bool is_locked, HttpRequest request, bool leaves) {
  const bool is_barred = is_locked && !IsServerCheck(request.head) &&
                         NeedsKey(routes, request.head) && !HoldsKey(request.head);
  auto wakes = std::make_shared<Wakes>();
  HttpAnswer answer = routes.Serve(std::move(request), [wakes] { wakes->Wake(); });
  if (is_barred) {
    const auto* reply = std::get_if<HttpReply>(&answer);
    DS_CHECK(reply != nullptr && reply->status >= 400, "nothing is served without a key");
  }
  TakeAnswer(std::move(answer), *wakes, leaves);
}

}  // namespace
}  // namespace diffserve

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace diffserve;
  if (size == 0) return 0;
  SetLogLevel(LogLevel::kError);
  static FuzzedServer server;
  const bool is_locked = (data[0] & 1) != 0;
  HttpRoutes& routes = is_locked ? server.locked : server.open;
  HttpReader reader{HttpLimits()};
  reader.Feed({reinterpret_cast<const char*>(data) + 1, size - 1});
  const int before = server.replies;
  int requests = 0;
  for (; reader.state() == HttpReader::State::kReady && requests < kMaxRequests; ++requests) {
    TakeRequest(routes, is_locked, reader.Take(), (data[0] & 2) != 0);
    reader.Next();
  }
  if (reader.state() == HttpReader::State::kRefused) {
    const HttpReply reply = routes.Service().refuse(reader.refusal().status,
                                                    reader.refusal().reason, reader.HeadSoFar());
    CheckReply(reply, reply.body);
    ++requests;
  }
  DS_CHECK(server.replies - before == requests, "each request is counted once");
  return 0;
}
