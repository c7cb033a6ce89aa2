// SPDX-License-Identifier: Apache-2.0
#include "engine/text/output_loop.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "kernels/base/memory_reserve.h"
#include "kernels/base/thread_registry.h"

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
  std::map<ResponseId, Messages> ending;
  ending[id].push_back(Ending{id, Status(StatusCode::kCancelled, "the client went away")});
  std::set<Name, NameOrder> name = {{opened.request_id, id}};
  Messages messages;
  messages.push_back(std::move(opened));
  {
    std::lock_guard lock(live_mutex_);
    endings_.merge(ending);
    names_.merge(name);
    // Under the lock, so that a thread that finds the ending sends it after this message.
    outbox_.PushUnbounded(std::move(messages));
  }
  return id;
}

void OutputLoop::Submit(ResponseId id, TokenizedRequest tokenized) {
  Messages messages;
  messages.push_back(Tokenized{id, std::move(tokenized)});
  outbox_.PushUnbounded(std::move(messages));
}

// Takes the response's ending message; empty if the response has ended or another caller has taken
// it.
OutputLoop::Messages OutputLoop::TakeEnding(ResponseId id) noexcept {
  std::lock_guard lock(live_mutex_);
  const auto found = endings_.find(id);
  return found == endings_.end() ? Messages() : std::move(found->second);
}

void OutputLoop::End(ResponseId id, Status status) noexcept {
  Messages messages = TakeEnding(id);
  if (messages.empty()) return;
  std::get<Ending>(messages.front()).status = std::move(status);
  outbox_.PushUnbounded(std::move(messages));
}

void OutputLoop::Abandon(ResponseId id) noexcept { outbox_.PushUnbounded(TakeEnding(id)); }

bool OutputLoop::EndNewest(Status status) noexcept {
  ResponseId id = 0;
  {
    std::lock_guard lock(live_mutex_);
    const auto newest = std::find_if(endings_.rbegin(), endings_.rend(),
                                     [](const auto& entry) { return !entry.second.empty(); });
    if (newest == endings_.rend()) return false;
    id = newest->first;
  }
  End(id, std::move(status));
  return true;
}

bool OutputLoop::EndByName(const std::string& request_id, const Status& status) {
  bool found = false;
  for (;;) {
    Status each = status;
    ResponseId id = 0;
    {
      std::lock_guard lock(live_mutex_);
      const auto it = names_.lower_bound(std::pair<const std::string&, ResponseId>(request_id, 0));
      if (it == names_.end() || it->first != request_id) return found;
      id = it->second;
      names_.erase(it);
    }
    found = true;
    End(id, std::move(each));
  }
}

void OutputLoop::Forget(const OpenedResponse& opened) noexcept {
  std::lock_guard lock(live_mutex_);
  endings_.erase(opened.id);
  const auto name = names_.find(
      std::pair<const std::string&, ResponseId>(opened.request_id, opened.id));
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
  const WorksForAllRequests uses_the_reserve;
  while (!outbox_.finished()) {
    std::optional<Message> message = outbox_.PopUntil(responses_.next_deadline());
    if (responses_.next_deadline() != Clock::time_point::max()) responses_.EndOverdue(Clock::now());
    if (message) Handle(std::move(*message));
  }
  responses_.EndAll(Status(StatusCode::kUnavailable, "the server has stopped"));
}

}  // namespace diffserve
