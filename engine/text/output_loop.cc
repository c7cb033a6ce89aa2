// SPDX-License-Identifier: Apache-2.0
#include "engine/text/output_loop.h"

#include <chrono>
#include <optional>
#include <utility>

#include "kernels/process/thread_registry.h"

namespace diffserve {

using Clock = std::chrono::steady_clock;

OutputLoop::OutputLoop(const Tokenizer& tokenizer, size_t outbox_capacity, EngineCalls engine)
    : outbox_(outbox_capacity),
      responses_(tokenizer, {.submit = std::move(engine.submit),
                             .cancel = std::move(engine.cancel),
                             .ended = [this](const OpenedResponse& opened) { Forget(opened); }}),
      thread_([this] { Run(); }) {}

OutputLoop::~OutputLoop() {
  outbox_.Close();
  thread_.join();
}

ResponseId OutputLoop::Open(OpenedResponse opened) {
  const ResponseId id = opened.id = ++last_id_;
  std::lock_guard lock(names_mutex_);
  names_.emplace(opened.owner, opened.request_id, id);
  // Under the lock, so that a thread that finds the name sends the ending after this message.
  outbox_.PushUnbounded(std::move(opened));
  return id;
}

void OutputLoop::Submit(ResponseId id, TokenizedRequest tokenized) {
  outbox_.PushUnbounded(Tokenized{id, std::move(tokenized)});
}

void OutputLoop::End(ResponseId id, Status status) {
  outbox_.PushUnbounded(Ending{id, std::move(status)});
}

void OutputLoop::Abandon(ResponseId id) {
  End(id, Status(StatusCode::kCancelled, "the client went away"));
}

bool OutputLoop::EndByName(const std::string& owner, const std::string& request_id,
                           const Status& status) {
  bool found = false;
  for (;;) {
    ResponseId id = 0;
    {
      std::lock_guard lock(names_mutex_);
      const auto it = names_.lower_bound(NameView(owner, request_id, 0));
      if (it == names_.end() || std::get<0>(*it) != owner || std::get<1>(*it) != request_id)
        return found;
      id = std::get<ResponseId>(*it);
      names_.erase(it);
    }
    found = true;
    End(id, status);
  }
}

ResponseStats OutputLoop::stats() const {
  std::lock_guard lock(stats_mutex_);
  return stats_;
}

// Called when a response ends.
void OutputLoop::Forget(const OpenedResponse& opened) {
  {
    std::lock_guard lock(stats_mutex_);
    stats_ = responses_.stats();
  }
  std::lock_guard lock(names_mutex_);
  const auto name = names_.find(NameView(opened.owner, opened.request_id, opened.id));
  if (name != names_.end()) names_.erase(name);
}

void OutputLoop::Post(TokenEvent event) {
  Message message = std::move(event);
  if (outbox_.TryPush(std::move(message))) return;
  ++num_waits_;
  outbox_.PushWait(std::move(message));
}

void OutputLoop::Handle(Message message) {
  if (auto* event = std::get_if<TokenEvent>(&message)) {
    responses_.Take(std::move(*event));
  } else if (auto* opened = std::get_if<OpenedResponse>(&message)) {
    responses_.Open(std::move(*opened));
  } else if (auto* tokenized = std::get_if<Tokenized>(&message)) {
    responses_.Submit(tokenized->id, std::move(tokenized->request));
  } else {
    Ending& ending = std::get<Ending>(message);
    responses_.End(ending.id, std::move(ending.status));
  }
}

void OutputLoop::Run() {
  const NamedThread named("output", "the outbox");
  while (!outbox_.finished()) {
    std::optional<Message> message = outbox_.PopUntil(responses_.next_deadline());
    if (responses_.next_deadline() != Clock::time_point::max()) responses_.EndOverdue(Clock::now());
    if (message) Handle(std::move(*message));
  }
  responses_.EndAll(Status(StatusCode::kUnavailable, "the server has stopped"));
}

}  // namespace diffserve
