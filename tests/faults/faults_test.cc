// SPDX-License-Identifier: Apache-2.0
// Each socket call of the server fails in turn, one in each run of a small scenario: clients of
// every kind at once. Each of them must get its whole right answer, a clear error or a closed
// connection; one failure harms one client at most; and afterwards everybody is answered and
// nothing is left.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/faults/failpoints.h"
#include "tests/testing/kernels/eventually.h"
#include "tests/testing/server/grpc_stack.h"

namespace diffserve::testing {
namespace {

constexpr int kPatienceS = 60;  // of a client; one that is still waiting then has been forgotten

enum class Outcome { kWhole, kError, kCut, kWrong, kForgotten };

const char* NameOf(Outcome outcome) {
  constexpr const char* kNames[] = {"whole", "error", "cut", "wrong", "forgotten"};
  return kNames[static_cast<int>(outcome)];
}

// One request on a connection of its own, read to the connection's end.
class HttpCall {
 public:
  HttpCall(int port, const std::string& path, const std::string& body)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval patience{kPatienceS, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    const std::string request =
        "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: " +
        std::to_string(body.size()) + "\r\n\r\n" + body;
    for (size_t sent = 0; sent < request.size();) {
      const ssize_t n = send(fd_, request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) break;  // what the server says of it is still to be read
      sent += static_cast<size_t>(n);
    }
  }
  ~HttpCall() { close(fd_); }
  HttpCall(const HttpCall&) = delete;
  HttpCall& operator=(const HttpCall&) = delete;

  // `wanted`: what ContentOf gives of the whole answer; empty: it is learnt.
  Outcome Finish(std::string* wanted) {
    std::string raw;
    char bytes[4096];
    ssize_t n;
    while ((n = recv(fd_, bytes, sizeof(bytes), 0)) > 0) raw.append(bytes, static_cast<size_t>(n));
    if (n < 0 && errno == EAGAIN) return Outcome::kForgotten;
    std::string body;
    if (!Unframe(raw, &body)) return Outcome::kCut;
    const std::string status = raw.substr(9, 3);
    if (status != "200") {
      const nlohmann::json error = nlohmann::json::parse(body, nullptr, false);
      const bool clear = error.is_object() && error.contains("error");
      return clear && (status == "429" || status[0] == '5') ? Outcome::kError : Outcome::kWrong;
    }
    bool has_error = false;
    const std::string content = ContentOf(body, &has_error);
    if (has_error) return Outcome::kError;
    if (wanted->empty()) *wanted = content;
    return !content.empty() && content == *wanted ? Outcome::kWhole : Outcome::kWrong;
  }

 private:
  // False if the reply does not end as its head says.
  static bool Unframe(const std::string& raw, std::string* body) {
    const size_t head_end = raw.find("\r\n\r\n");
    if (head_end == std::string::npos) return false;
    const std::string rest = raw.substr(head_end + 4);
    const size_t length = raw.find("Content-Length: ");
    if (length < head_end) {
      *body = rest;
      return rest.size() == std::strtoull(raw.c_str() + length + 16, nullptr, 10);
    }
    for (size_t at = 0;;) {
      const size_t line_end = rest.find("\r\n", at);
      if (line_end == std::string::npos) return false;
      const size_t size = std::strtoull(rest.c_str() + at, nullptr, 16);
      if (rest.size() < line_end + 2 + size + 2) return false;
      if (size == 0) return true;
      body->append(rest, line_end + 2, size);
      at = line_end + 2 + size + 2;
    }
  }

  // What must be the same in every run: no ids and times.
  static std::string ContentOf(const std::string& body, bool* has_error) {
    if (body.rfind("data: ", 0) != 0) {
      const nlohmann::json reply = nlohmann::json::parse(body, nullptr, false);
      if (!reply.is_object()) return {};
      return reply.contains("choices") ? reply["choices"].dump() : reply["tokens"].dump();
    }
    std::string text;
    for (size_t begin = 0, end; (end = body.find("\n\n", begin)) != std::string::npos;
         begin = end + 2) {
      const std::string data = body.substr(begin + 6, end - begin - 6);
      if (data == "[DONE]") return text + data;
      const nlohmann::json event = nlohmann::json::parse(data, nullptr, false);
      *has_error |= event.contains("error");
      if (event.contains("choices")) {
        for (const auto& choice : event["choices"]) text += choice.value("text", "");
      }
    }
    return {};  // it lacks its end
  }

  const int fd_;
};

// The scenario: calls of every kind, all under way at once.
class Scenario {
 public:
  explicit Scenario(GrpcStack& stack) : stack_(stack) {
    EXPECT_EQ(Run(), "") << "without a failure everybody is answered";
  }

  // "", or what became of those that were not answered wholly. `harmed`: how many those are.
  std::string Run(int* harmed = nullptr) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(kPatienceS));
    const auto stub = stack_.NewStub();
    const auto reader = stub->Generate(&context, RequestOf({5, 6, 7, 8}, 6));
    std::vector<std::unique_ptr<HttpCall>> calls;
    for (const auto& [path, body] : kHttpCalls)
      calls.push_back(std::make_unique<HttpCall>(stack_.port(), path, body));

    std::string report;
    const auto tell = [&](const std::string& who, Outcome outcome) {
      if (outcome == Outcome::kWhole) return;
      report += who + " " + NameOf(outcome) + "; ";
      if (harmed != nullptr) ++*harmed;
      EXPECT_TRUE(outcome != Outcome::kWrong && outcome != Outcome::kForgotten) << report;
    };
    wanted_.resize(calls.size());
    for (size_t i = 0; i < calls.size(); ++i)
      tell(kHttpCalls[i].first + " (" + std::to_string(i) + ")", calls[i]->Finish(&wanted_[i]));
    tell("gRPC", OutcomeOf(testing::Finish(context, *reader)));
    return report;
  }

 private:
  static std::string LongPrompt() {
    std::string text;
    for (int i = 0; i < 400; ++i) text += "word ";
    return text;
  }

  Outcome OutcomeOf(const Generated& generated) {
    switch (generated.status.error_code()) {
      case grpc::StatusCode::OK:
        break;
      case grpc::StatusCode::RESOURCE_EXHAUSTED:
        return Outcome::kError;
      case grpc::StatusCode::DEADLINE_EXCEEDED:
        return Outcome::kForgotten;
      case grpc::StatusCode::UNAVAILABLE:
      case grpc::StatusCode::CANCELLED:
        return Outcome::kCut;
      default:
        ADD_FAILURE() << generated.status.error_code() << " " << generated.status.error_message();
        return Outcome::kWrong;
    }
    const std::vector<int32_t> tokens = generated.TokensOf(0);
    if (grpc_wanted_.empty()) grpc_wanted_ = tokens;
    return !tokens.empty() && tokens == grpc_wanted_ ? Outcome::kWhole : Outcome::kWrong;
  }

  GrpcStack& stack_;
  const std::vector<std::pair<std::string, std::string>> kHttpCalls = {
      {"/v1/completions",
       R"({"prompt": "one two", "max_tokens": 8, "temperature": 0, "stream": true})"},
      {"/v1/completions",
       R"({"prompt": "bystander", "max_tokens": 5, "temperature": 0, "n": 2, "logprobs": 1})"},
      {"/v1/chat/completions",
       R"({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "temperature": 0})"},
      {"/tokenize", R"({"prompt": "some words to be counted"})"},
      {"/v1/completions",  // a body that a text thread parses
       R"({"prompt": ")" + LongPrompt() + R"(", "max_tokens": 2, "temperature": 0, "user": ")" +
           std::string(70'000, 'u') + R"("})"}};
  std::vector<std::string> wanted_;
  std::vector<int32_t> grpc_wanted_;
};

GrpcStackOptions Options() {
  GrpcStackOptions options;
  options.with_template = true;
  options.frontend.max_answers_bytes = size_t{64} << 20;  // what leaks of it is soon missed
  return options;
}

// Runs the scenario with the first, second, ... such call failing, until none fails any more.
class FaultsTest : public ::testing::Test {
 protected:
  void FailEach(Armed armed) {
    int failures = 0, runs_with_harm = 0;
    for (armed.call = 1;; ++armed.call) {
      int harmed = 0;
      Arm(armed);
      const std::string report = scenario_.Run(&harmed);
      const bool came = Disarm();
      EXPECT_LE(harmed, 1) << "call " << armed.call << ": " << report;
      ExpectNothingIsLeft();
      if (HasFailure()) FAIL() << "call " << armed.call << " of " << armed.thread << ": " << report;
      if (!came) break;
      ++failures;
      runs_with_harm += harmed;
    }
    std::printf("%s, error %d: %d calls failed, %d of them harmed a request\n",
                armed.thread.c_str(), armed.error, failures, runs_with_harm);
    std::fflush(stdout);
    EXPECT_GT(failures, 0) << "nothing was made to fail on " << armed.thread;
    harmed_ = runs_with_harm;
  }

  void ExpectNothingIsLeft() {
    EXPECT_TRUE(stack_.EngineIsEmpty());
    EXPECT_TRUE(Eventually([this] { return stack_.http->num_connections() == 0; }));
    EXPECT_FALSE(stack_.Stats().failed);
  }

  void TearDown() override { EXPECT_EQ(scenario_.Run(), "") << "in the end everybody is answered"; }

  GrpcStack stack_{Options()};
  Scenario scenario_{stack_};
  int harmed_ = 0;
};

TEST_F(FaultsTest, FailedAcceptIsRetried) {
  for (const char* thread : {"http-accept", "grpc-accept"}) {
    for (const int error : {EMFILE, ENFILE, ECONNABORTED, ENOBUFS}) {
      FailEach({.point = Failpoint::kAccept, .thread = thread, .error = error});
      EXPECT_EQ(harmed_, 0) << thread << " " << error;
    }
  }
}

TEST_F(FaultsTest, FailedReadEndsItsConnection) {
  for (const char* thread : {"http", "grpc-accept"}) {
    for (const int error : {ECONNRESET, ENOBUFS, EINTR, 0}) {
      FailEach({.point = Failpoint::kReceive, .thread = thread, .error = error});
      if (error == EINTR || error == 0) {
        EXPECT_EQ(harmed_, 0) << thread << " " << error;
      }
    }
  }
}

TEST_F(FaultsTest, FailedWriteEndsItsConnection) {
  for (const char* thread : {"http", "grpc-accept"}) {
    for (const int error : {EPIPE, ECONNRESET, ENOBUFS, EINTR, 0}) {
      FailEach({.point = Failpoint::kSend, .thread = thread, .error = error});
      if (error == EINTR || error == 0) {
        EXPECT_EQ(harmed_, 0) << thread << " " << error;
      }
    }
  }
}

}  // namespace
}  // namespace diffserve::testing
