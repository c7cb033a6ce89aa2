// SPDX-License-Identifier: Apache-2.0
// The runner over a service whose answers the test decides.
#include "server/app/batch/batch_runner.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/kernels/eventually.h"
#include "tests/testing/kernels/temporary_directory.h"

namespace diffserve {
namespace {

using ::testing::ElementsAre;
using testing::Eventually;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;
using Json = nlohmann::json;

HttpReply ReplyOf(int status, const std::string& body = "{}") {
  HttpReply reply;
  reply.status = status;
  reply.body = body;
  return reply;
}
HttpReply Ok() { return ReplyOf(200); }

// Answers when the test says so. Every method may be called from any thread.
class FakeService {
 public:
  struct Waiting {
    std::function<void()> wake;
    std::vector<std::string> parts;  // of the body, each after a wake
    std::optional<HttpReply> reply;
  };

  HttpAnswer Serve(HttpRequest request, std::function<void()> wake) {
    const std::lock_guard lock(mutex_);
    bodies_.push_back(request.body);
    most_ = std::max(most_.load(), ++running_);
    if (refuses_ > 0) {
      --refuses_;
      --running_;
      return ReplyOf(429);
    }
    const auto waiting = std::make_shared<Waiting>();
    waiting->wake = std::move(wake);
    waiting_[request.body] = waiting;
    return std::make_unique<Exchange>(*this, waiting);
  }
  BatchRunner::Serve serve() {
    return [this](HttpRequest request, std::function<void()> wake) {
      return Serve(std::move(request), std::move(wake));
    };
  }

  void Refuse(int times) { refuses_ = times; }
  // Answers a request in flight. `parts`: the rest of a body that is sent piece by piece.
  void Answer(const std::string& body, HttpReply reply, std::vector<std::string> parts = {}) {
    std::function<void()> wake;
    {
      const std::lock_guard lock(mutex_);
      const auto waiting = waiting_.at(body);
      waiting_.erase(body);
      reply.streams = !parts.empty();
      waiting->parts = std::move(parts);
      waiting->reply = std::move(reply);
      wake = waiting->wake;
    }
    wake();
  }
  bool Runs(const std::string& body) const {
    const std::lock_guard lock(mutex_);
    return waiting_.contains(body);
  }
  std::vector<std::string> bodies() const {
    const std::lock_guard lock(mutex_);
    return bodies_;
  }
  size_t most() const { return most_; }

 private:
  class Exchange : public HttpExchange {
   public:
    Exchange(FakeService& service, std::shared_ptr<Waiting> waiting)
        : service_(service), waiting_(std::move(waiting)) {}
    ~Exchange() override {
      const std::lock_guard lock(service_.mutex_);
      --service_.running_;
    }
    std::optional<HttpReply> Reply() override {
      const std::lock_guard lock(service_.mutex_);
      return waiting_->reply;
    }
    // Each piece needs a call after another wake. A turn that begins with bytes adds none.
    bool Frames(std::string* bytes) override {
      if (!bytes->empty()) return false;
      if (!std::exchange(gives_, !gives_)) {
        waiting_->wake();
        return false;
      }
      *bytes += waiting_->parts.at(next_++);
      return next_ == waiting_->parts.size();
    }

   private:
    FakeService& service_;
    const std::shared_ptr<Waiting> waiting_;
    size_t next_ = 0;
    bool gives_ = false;
  };

  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Waiting>> waiting_;  // by body
  std::vector<std::string> bodies_;                          // of all requests, in order
  size_t running_ = 0;
  std::atomic<size_t> most_ = 0;
  std::atomic<int> refuses_ = 0;
};

std::string BodyOf(int number) { return "{\"n\":" + std::to_string(number) + "}"; }
std::string InputLine(int number) {
  return R"({"custom_id":")" + std::to_string(number) +
         R"(","method":"POST","url":"/v1/completions","body":)" + BodyOf(number) + "}\n";
}

class BatchRunnerTest : public ::testing::Test {
 protected:
  BatchRunnerTest() {
    options_.refusal_pause = std::chrono::milliseconds(1);
    options_.max_refusals_alone = 3;
  }
  ~BatchRunnerTest() override {
    if (runs_.joinable()) runs_.join();
    if (input_ >= 0) close(input_);
  }

  // Runs in a thread until Ended.
  void Start(const std::string& input) {
    directory_.Write("in", input);
    input_ = open((directory_.path() / "in").c_str(), O_RDONLY | O_CLOEXEC);
    lines_.emplace("in", input_, 1 << 20);
    Result<std::unique_ptr<BatchJournal>> journal = BatchJournal::Open(output());
    ASSERT_TRUE(journal.ok()) << journal.status().message();
    journal_ = std::move(journal).value();
    runner_.emplace(options_, service_.serve(), *lines_, *journal_, [](const BatchCounts&) {});
    runs_ = std::thread([this] { status_ = runner_->Run(); });
  }
  Status Ended() {
    runs_.join();
    return status_;
  }
  void WaitFor(const std::string& body) {
    ASSERT_TRUE(Eventually([&] { return service_.Runs(body); })) << body;
  }
  std::string output() const { return directory_.path() / "out"; }
  std::vector<Json> Answers() const {
    std::vector<Json> answers;
    std::istringstream file(FileBytes(output()));
    for (std::string line; std::getline(file, line);) answers.push_back(Json::parse(line));
    return answers;
  }
  std::vector<std::string> CustomIds() const {
    std::vector<std::string> ids;
    for (const Json& answer : Answers())
      ids.push_back(answer["custom_id"].is_null() ? "" : answer["custom_id"]);
    return ids;
  }

  const TemporaryDirectory directory_;
  BatchRunnerOptions options_;
  FakeService service_;
  int input_ = -1;
  std::optional<LineReader> lines_;
  std::unique_ptr<BatchJournal> journal_;
  std::optional<BatchRunner> runner_;
  Status status_;
  std::thread runs_;
};

TEST_F(BatchRunnerTest, KeepsTheLimitInFlightAndWritesInTheOrderOfCompletion) {
  options_.max_in_flight = 2;
  Start(InputLine(1) + InputLine(2) + InputLine(3));
  WaitFor(BodyOf(1));
  WaitFor(BodyOf(2));
  service_.Answer(BodyOf(2), Ok());
  WaitFor(BodyOf(3));
  service_.Answer(BodyOf(3), Ok());
  ASSERT_TRUE(Eventually([&] { return Answers().size() == 2; }));  // at once, not at the end
  service_.Answer(BodyOf(1), Ok());
  EXPECT_TRUE(Ended().ok());
  EXPECT_THAT(CustomIds(), ElementsAre("2", "3", "1"));
  EXPECT_EQ(service_.most(), 2u);
  EXPECT_EQ(runner_->counts().answered, 3u);
  EXPECT_EQ(runner_->counts().bytes_answered, 3 * InputLine(1).size());
}

TEST_F(BatchRunnerTest, BodiesInFlightAreBounded) {
  options_.max_in_flight = 10;
  options_.max_bytes_in_flight = BodyOf(1).size() + 1;
  Start(InputLine(1) + InputLine(2) + InputLine(3));
  for (int number = 1; number <= 3; ++number) {
    WaitFor(BodyOf(number));
    service_.Answer(BodyOf(number), Ok());
  }
  EXPECT_TRUE(Ended().ok());
  EXPECT_LE(service_.most(), 2u);
}

TEST_F(BatchRunnerTest, BodyThatComesInPiecesIsWrittenWhole) {
  Start(InputLine(1));
  WaitFor(BodyOf(1));
  service_.Answer(BodyOf(1), ReplyOf(200, "["), {"1,", "2", "]"});
  EXPECT_TRUE(Ended().ok());
  ASSERT_THAT(Answers(), SizeIs(1));
  EXPECT_EQ(Answers()[0]["response"]["body"], Json::parse("[1,2]"));
}

TEST_F(BatchRunnerTest, ErrorsAreAnswersBesideTheOthers) {
  const std::string bad_url = R"({"custom_id":"u","method":"POST","url":"/x","body":{}})";
  options_.max_in_flight = 2;
  Start("nonsense\n \t\n" + bad_url + "\n" + InputLine(1) + InputLine(1));
  WaitFor(BodyOf(1));
  service_.Answer(BodyOf(1), ReplyOf(400));
  EXPECT_TRUE(Ended().ok());
  const std::vector<Json> answers = Answers();
  ASSERT_THAT(answers, SizeIs(4));
  EXPECT_TRUE(answers[0]["custom_id"].is_null());
  EXPECT_THAT(answers[0]["error"]["message"].get<std::string>(), HasSubstr("line 1: "));
  EXPECT_EQ(answers[1]["custom_id"], "u");
  EXPECT_EQ(answers[1]["error"]["code"], "invalid_url");
  EXPECT_EQ(answers[1]["error"]["line"], 3);  // the blank line counts
  EXPECT_TRUE(answers[2]["custom_id"].is_null());
  EXPECT_EQ(answers[2]["error"]["code"], "duplicate_custom_id");
  EXPECT_EQ(answers[3]["custom_id"], "1");
  EXPECT_EQ(answers[3]["response"]["status_code"], 400);
  EXPECT_TRUE(answers[3]["error"].is_null());
  EXPECT_EQ(runner_->counts().errors, 4u);
}

TEST_F(BatchRunnerTest, RefusedRequestStartsAgainBeforeLaterOnes) {
  options_.max_in_flight = 3;
  Start(InputLine(1));
  WaitFor(BodyOf(1));
  service_.Answer(BodyOf(1), ReplyOf(429));
  WaitFor(BodyOf(1));
  service_.Answer(BodyOf(1), Ok());
  EXPECT_TRUE(Ended().ok());
  EXPECT_THAT(service_.bodies(), ElementsAre(BodyOf(1), BodyOf(1)));
  ASSERT_THAT(Answers(), SizeIs(1));
  EXPECT_EQ(Answers()[0]["response"]["status_code"], 200);
}

TEST_F(BatchRunnerTest, RequestThatIsRefusedWhileNoneRunsGetsTheRefusalAsItsAnswer) {
  service_.Refuse(3);
  Start(InputLine(1) + InputLine(2));
  WaitFor(BodyOf(2));
  service_.Answer(BodyOf(2), Ok());
  EXPECT_TRUE(Ended().ok());
  ASSERT_THAT(Answers(), SizeIs(2));
  EXPECT_EQ(Answers()[0]["response"]["status_code"], 429);
  EXPECT_THAT(service_.bodies(), ElementsAre(BodyOf(1), BodyOf(1), BodyOf(1), BodyOf(2)));
}

TEST_F(BatchRunnerTest, NextRunDoesOnlyWhatIsLeft) {
  directory_.Write("out", AnswerLine("2", Ok()) + ErrorLine({"", 4, "code", "message", ""}) +
                              AnswerLine("gone", Ok()));
  options_.max_in_flight = 4;
  Start(InputLine(1) + InputLine(2) + InputLine(3) + "nonsense\n" + InputLine(2));
  WaitFor(BodyOf(1));
  WaitFor(BodyOf(3));
  service_.Answer(BodyOf(1), Ok());
  service_.Answer(BodyOf(3), Ok());
  EXPECT_TRUE(Ended().ok());
  EXPECT_THAT(service_.bodies(), ElementsAre(BodyOf(1), BodyOf(3)));
  const std::vector<std::string> ids = CustomIds();
  EXPECT_EQ(std::ranges::count(ids, "2"), 1);
  EXPECT_EQ(runner_->counts().skipped, 2u);
  EXPECT_EQ(runner_->counts().answered, 3u);  // the second 2 is a duplicate, which is an error
  EXPECT_EQ(runner_->num_unmatched(), 1u);
}

TEST_F(BatchRunnerTest, StopLetsRunningRequestsEndAndStartsNoOther) {
  options_.max_in_flight = 2;
  Start(InputLine(1) + InputLine(2) + InputLine(3));
  WaitFor(BodyOf(1));
  WaitFor(BodyOf(2));
  runner_->Stop();
  service_.Answer(BodyOf(1), Ok());
  service_.Answer(BodyOf(2), Ok());
  const Status status = Ended();
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_THAT(status.message(), HasSubstr("the same command continues"));
  EXPECT_THAT(CustomIds(), UnorderedElementsAre("1", "2"));
  EXPECT_THAT(service_.bodies(), SizeIs(2));
}

TEST_F(BatchRunnerTest, FailedEngineEndsTheRunAndWritesNoAnswerOfIt) {
  options_.max_in_flight = 2;
  Start(InputLine(1) + InputLine(2));
  WaitFor(BodyOf(1));
  WaitFor(BodyOf(2));
  service_.Answer(BodyOf(1), Ok());
  ASSERT_TRUE(Eventually([&] { return Answers().size() == 1; }));
  service_.Answer(BodyOf(2), ReplyOf(503));
  EXPECT_EQ(Ended().code(), StatusCode::kUnavailable);
  EXPECT_THAT(CustomIds(), ElementsAre("1"));
}

}  // namespace
}  // namespace diffserve
