// SPDX-License-Identifier: Apache-2.0
#include "server/app/batch/batch_runner.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/process/check.h"
#include "kernels/process/log.h"
#include "server/serving/status_codes.h"

namespace diffserve {
namespace {

constexpr int kLinesPerTurn = 64;  // of the input, between two looks at the answers
constexpr int kRefused = WireStatusOf(StatusCode::kResourceExhausted).http;
constexpr int kEngineFailed = WireStatusOf(StatusCode::kUnavailable).http;
constexpr int kMinErrorStatus = 400;

bool IsBlank(const std::string& text) {
  return text.find_first_not_of(" \t\r") == std::string::npos;
}

}  // namespace

// Which requests in flight have something new. Their wake functions outlive the runner.
class BatchRunner::Bell {
 public:
  Bell() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    DS_CHECK(event_ >= 0, "the system has a file descriptor for a run's events");
  }
  ~Bell() { close(event_); }
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  void Ring(uint64_t key) {
    const std::lock_guard lock(mutex_);
    rung_.insert(key);
    eventfd_write(event_, 1);
  }
  void Stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    eventfd_write(event_, 1);
  }
  bool is_stopped() const {
    const std::lock_guard lock(mutex_);
    return stopped_;
  }
  // The keys since the last call. Waits for one, for a stop, for bytes of `input` (-1: none), or
  // until `deadline`; nullopt: there is none.
  std::unordered_set<uint64_t> Wait(int input, std::optional<Clock::time_point> deadline) {
    std::array<pollfd, 2> waiting = {pollfd{.fd = event_, .events = POLLIN, .revents = 0},
                                     pollfd{.fd = input, .events = POLLIN, .revents = 0}};
    int timeout_ms = -1;
    if (deadline) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now());
      timeout_ms = static_cast<int>(std::max<int64_t>(0, left.count()));
    }
    poll(waiting.data(), waiting.size(), timeout_ms);
    eventfd_t ignored = 0;
    eventfd_read(event_, &ignored);
    const std::lock_guard lock(mutex_);
    return std::exchange(rung_, {});
  }

 private:
  const int event_;
  mutable std::mutex mutex_;
  std::unordered_set<uint64_t> rung_;
  bool stopped_ = false;
};

BatchRunner::BatchRunner(BatchRunnerOptions options, Serve serve, LineReader& input,
                         BatchJournal& journal, Report report)
    : options_(options),
      serve_(std::move(serve)),
      input_(input),
      journal_(journal),
      report_(std::move(report)),
      bell_(std::make_shared<Bell>()) {}

BatchRunner::~BatchRunner() = default;

void BatchRunner::Stop() { bell_->Stop(); }

Status BatchRunner::Run() {
  for (;;) {
    stopping_ = bell_->is_stopped();
    for (int i = 0; i < kLinesPerTurn && MayStart(); ++i) DS_RETURN_IF_ERROR(StartNext());
    DS_RETURN_IF_ERROR(Write());
    report_(counts_);
    if (in_flight_.empty()) {
      if (input_ended_ && refused_.empty() && unwritten_.empty()) return {};
      if (stopping_) return StoppedStatus();
    }
    const std::optional<Clock::time_point> next = NextTurn();
    const int input = std::exchange(waits_for_input_, false) ? input_.descriptor() : -1;
    for (const uint64_t key : bell_->Wait(input, next)) DS_RETURN_IF_ERROR(Poll(key));
  }
}

bool BatchRunner::MayStart() const {
  if (stopping_ || disk_is_full_) return false;
  if ((input_ended_ || waits_for_input_) && refused_.empty()) return false;
  const bool has_room = in_flight_.size() < options_.max_in_flight &&
                        bytes_in_flight_ < options_.max_bytes_in_flight;
  return (has_room || in_flight_.empty()) && Clock::now() >= held_until_;
}

// When there is something to do that no wake announces; nullopt: never.
std::optional<BatchRunner::Clock::time_point> BatchRunner::NextTurn() const {
  if (MayStart()) return Clock::now();
  std::optional<Clock::time_point> next;
  if (!refused_.empty()) next = held_until_;
  if (disk_is_full_) next = next_write_;
  return next;
}

// Starts what was refused or reads a line of the input, which may need no start.
Status BatchRunner::StartNext() {
  if (!refused_.empty()) {
    InFlight next = std::move(refused_.front());
    refused_.pop_front();
    return Start(std::move(next));
  }
  const Result<std::optional<TextLine>> next = input_.Next();
  if (!next.ok()) return next.status();
  if (!*next) {
    input_ended_ = input_.ended();
    waits_for_input_ = !input_ended_;
    return {};
  }
  const TextLine& line = **next;
  if (IsBlank(line.text)) {
    counts_.bytes_skipped += line.bytes;
    return {};
  }
  std::variant<BatchRequest, BatchError> read = ReadBatchLine(line, options_.max_body_bytes);
  std::string custom_id = std::visit([](const auto& found) { return found.custom_id; }, read);
  if (!custom_id.empty() && !seen_.insert(custom_id).second)
    read = DuplicateError(std::exchange(custom_id, {}), line.number);
  BatchJournal::Answered& before = journal_.answered();
  if (custom_id.empty() ? before.lines.erase(line.number) : before.custom_ids.erase(custom_id)) {
    ++counts_.skipped;
    counts_.bytes_skipped += line.bytes;
    return {};
  }
  if (auto* request = std::get_if<BatchRequest>(&read))
    return Start({std::move(*request), line.bytes});
  unwritten_.push_back({ErrorLine(std::get<BatchError>(read)), line.bytes, /*is_error=*/true});
  return {};
}

Status BatchRunner::Start(InFlight started) {
  HttpRequest request;
  request.head.method = "POST";
  request.head.path = started.request.url;
  request.head.host = "localhost";
  request.head.content_length = started.request.body.size();
  request.body = started.request.body;  // a copy, because a refused request starts again
  const uint64_t key = ++last_key_;
  HttpAnswer answer = serve_(std::move(request), [bell = bell_, key] { bell->Ring(key); });
  if (auto* reply = std::get_if<HttpReply>(&answer)) {
    started.reply = std::move(*reply);
    return Take(std::move(started));
  }
  started.exchange = std::get<std::unique_ptr<HttpExchange>>(std::move(answer));
  bytes_in_flight_ += started.request.body.size();
  in_flight_.emplace(key, std::move(started));
  return Poll(key);
}

Status BatchRunner::Poll(uint64_t key) {
  const auto found = in_flight_.find(key);
  if (found == in_flight_.end()) return {};
  InFlight& polled = found->second;
  if (!polled.reply) polled.reply = polled.exchange->Reply();
  if (!polled.reply) return {};
  while (polled.reply->streams) {
    std::string piece;  // a new one each time, because its size is what ends a turn
    polled.reply->streams = !polled.exchange->Frames(&piece);
    if (polled.reply->streams && piece.empty()) return {};
    polled.reply->body += piece;
  }
  InFlight ended = std::move(polled);
  in_flight_.erase(found);
  bytes_in_flight_ -= ended.request.body.size();
  ended.exchange.reset();
  return Take(std::move(ended));
}

Status BatchRunner::Take(InFlight ended) {
  const int status = ended.reply->status;
  if (status == kEngineFailed) {
    return Status(StatusCode::kUnavailable,
                  "the engine answers no more requests; the answers so far are written, and the "
                  "same command continues after them");
  }
  const bool is_alone = in_flight_.empty();
  if (status == kRefused && !(is_alone && ++refusals_alone_ >= options_.max_refusals_alone)) {
    ended.reply.reset();
    refused_.push_back(std::move(ended));
    held_until_ = Clock::now() + options_.refusal_pause;
    return {};
  }
  refusals_alone_ = 0;
  held_until_ = {};  // there may be room now
  unwritten_.push_back({AnswerLine(ended.request.custom_id, *ended.reply), ended.input_bytes,
                        status >= kMinErrorStatus});
  return {};
}

Status BatchRunner::Write() {
  if (disk_is_full_ && !stopping_ && Clock::now() < next_write_) return {};
  while (!unwritten_.empty()) {
    const Output& output = unwritten_.front();
    const Result<bool> written = journal_.Append(output.line);
    if (!written.ok()) return written.status();
    if (!*written) {
      if (!std::exchange(disk_is_full_, true))
        Log(LogLevel::kWarning, "disk_full",
            {{"doing", "no new request starts until it has room"}});
      next_write_ = Clock::now() + options_.full_disk_pause;
      return {};
    }
    ++counts_.answered;
    counts_.errors += output.is_error ? 1 : 0;
    counts_.bytes_answered += output.input_bytes;
    unwritten_.pop_front();
  }
  disk_is_full_ = false;
  return {};
}

Status BatchRunner::StoppedStatus() const {
  const std::string lost = unwritten_.empty()
                               ? ""
                               : "; the disk is full, so " + std::to_string(unwritten_.size()) +
                                     " complete answers are dropped and computed again";
  return Status(StatusCode::kCancelled,
                "stopped by a signal" + lost + "; the same command continues");
}

}  // namespace diffserve
