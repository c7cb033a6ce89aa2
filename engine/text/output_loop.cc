#include "engine/text/output_loop.h"

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/base/thread_registry.h"

namespace diffserve {

using Clock = std::chrono::steady_clock;

OutputLoop::OutputLoop(const Tokenizer& tokenizer, size_t outbox_capacity, EngineWays engine)
    : outbox_(outbox_capacity),
      responses_(tokenizer, {.submit = std::move(engine.submit),
                             .cancel = std::move(engine.cancel),
                             .ended =
                                 [this](const OpenedResponse& opened) {
                                   std::lock_guard lock(names_mutex_);
                                   names_.erase({opened.request_id, opened.id});
                                 }}),
      thread_([this] { Run(); }) {}

OutputLoop::~OutputLoop() {
  outbox_.Close();
  thread_.join();
}

ResponseId OutputLoop::Open(OpenedResponse opened) {
  const ResponseId id = opened.id = ++last_id_;
  {
    std::lock_guard lock(names_mutex_);
    names_.emplace(opened.request_id, id);
  }
  outbox_.PushBeyond(std::move(opened));
  return id;
}

void OutputLoop::Submit(ResponseId id, TokenizedRequest tokenized) {
  outbox_.PushBeyond(Tokenized{id, std::move(tokenized)});
}

void OutputLoop::End(ResponseId id, Status status) {
  outbox_.PushBeyond(Ending{id, std::move(status)});
}

bool OutputLoop::EndByName(const std::string& request_id, const Status& status) {
  std::vector<ResponseId> found;
  {
    std::lock_guard lock(names_mutex_);
    auto it = names_.lower_bound({request_id, 0});
    for (; it != names_.end() && it->first == request_id; it = names_.erase(it))
      found.push_back(it->second);
  }
  for (const ResponseId id : found) End(id, status);
  return !found.empty();
}

void OutputLoop::Post(TokenEvent event) {
  Message message = std::move(event);
  if (outbox_.TryPush(std::move(message))) return;
  ++num_waits_;
  outbox_.Push(std::move(message));
}

void OutputLoop::Run() {
  const NamedThread named("output", "the outbox");
  while (!outbox_.finished()) {
    std::optional<Message> message = outbox_.PopUntil(responses_.next_deadline());
    if (responses_.next_deadline() != Clock::time_point::max()) responses_.EndOverdue(Clock::now());
    if (!message) continue;
    if (auto* event = std::get_if<TokenEvent>(&*message)) {
      responses_.Take(std::move(*event));
    } else if (auto* opened = std::get_if<OpenedResponse>(&*message)) {
      responses_.Open(std::move(*opened));
    } else if (auto* tokenized = std::get_if<Tokenized>(&*message)) {
      responses_.Submit(tokenized->id, std::move(tokenized->request));
    } else {
      Ending& ending = std::get<Ending>(*message);
      responses_.End(ending.id, std::move(ending.status));
    }
  }
  responses_.EndAll(Status(StatusCode::kUnavailable, "the server has stopped"));
}

}  // namespace diffserve
