#include "server/openai/exchange.h"

#include <mutex>
#include <utility>

namespace diffserve {
namespace {

constexpr size_t kTurnBytes = 64 << 10;  // made at a time, so that connections take turns; a body
                                         // that fits has a Content-Length

}  // namespace

GenerateExchange::GenerateExchange(Frontend& frontend, Source source,
                                   std::shared_ptr<std::atomic<bool>> wake_due,
                                   OpenAiResponse response, bool streams, Hooks hooks)
    : frontend_(frontend),
      source_(std::move(source)),
      wake_due_(std::move(wake_due)),
      response_(std::move(response)),
      streams_(streams),
      hooks_(std::move(hooks)) {}

GenerateExchange::~GenerateExchange() {
  source_.stream->Close();
  if (!response_.done()) frontend_.Abandon(source_.id);
  outcome_.status = whole() ? response_.status()
                            : Status(StatusCode::kCancelled, "the client went away");
  outcome_.completion_tokens = response_.completion_tokens();
  hooks_.on_end(outcome_);
}

std::function<void()> GenerateExchange::NotifyOf(std::shared_ptr<std::atomic<bool>> wake_due,
                                                 std::function<void()> wake) {
  return [wake_due = std::move(wake_due), wake = std::move(wake)] {
    if (!wake_due->exchange(true)) wake();
  };
}

std::optional<ResponseEvent> GenerateExchange::NextEvent() {
  if (!ends_with_error_) return source_.stream->TryPop();
  return ResponseDone{Status(StatusCode::kUnavailable, "the server is shutting down"),
                      {.completion_tokens = response_.completion_tokens()}};
}

bool GenerateExchange::EndWithError() {
  if (!streams_ || !response_.started() || response_.done()) return false;
  ends_with_error_ = true;
  source_.stream->Close();
  frontend_.Abandon(source_.id);
  return true;
}

void GenerateExchange::TakeEvents(std::string* bytes) {
  wake_due_->store(false);  // before the queue is looked at: an event that comes later wakes again
  while (response_.Write(kTurnBytes, bytes) && bytes->size() < kTurnBytes && !response_.done()) {
    std::optional<ResponseEvent> event = NextEvent();
    if (!event) return;
    response_.Take(std::move(*event));
  }
}

std::optional<HttpReply> GenerateExchange::Reply() {
  TakeEvents(&pending_);
  if (!response_.done() && !(streams_ && response_.started())) return std::nullopt;
  HttpReply reply;
  if (response_.done() && !response_.status().ok() && !(streams_ && response_.started())) {
    reply = hooks_.error_reply(response_.status());
  } else if (streams_) {
    reply.streams = true;
    reply.content_type = "text/event-stream; charset=utf-8";
    reply.fields = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  } else if (response_.written()) {
    reply.body = std::exchange(pending_, {});
  } else {
    reply.streams = true;
  }
  outcome_.http_status = reply.status;
  return reply;
}

bool GenerateExchange::Frames(std::string* bytes) {
  *bytes += std::exchange(pending_, {});
  TakeEvents(bytes);
  return whole();
}

struct PendingReplyExchange::Place {
  std::function<void()> wake;
  std::mutex mutex;
  std::optional<HttpReply> reply;
};

std::shared_ptr<PendingReplyExchange::Place> PendingReplyExchange::NewPlace(
    std::function<void()> wake) {
  auto place = std::make_shared<Place>();
  place->wake = std::move(wake);
  return place;
}

void PendingReplyExchange::Fill(Place& place, HttpReply reply) {
  {
    std::lock_guard lock(place.mutex);
    place.reply = std::move(reply);
  }
  place.wake();
}

std::optional<HttpReply> PendingReplyExchange::Reply() {
  std::lock_guard lock(place_->mutex);
  return std::exchange(place_->reply, std::nullopt);
}

std::optional<HttpReply> DeferredExchange::Reply() {
  if (inner_ == nullptr) {
    std::optional<HttpAnswer> answer = begin_();
    if (!answer) return std::nullopt;
    if (auto* reply = std::get_if<HttpReply>(&*answer)) return std::move(*reply);
    inner_ = std::get<std::unique_ptr<HttpExchange>>(std::move(*answer));
  }
  return inner_->Reply();
}

}  // namespace diffserve
