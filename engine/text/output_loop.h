// SPDX-License-Identifier: Apache-2.0
// OutputLoop: the output thread. It is the only owner of all Responses and the only writer of every
// stream. It takes messages from an outbox: the engine's token events, and the front end's calls
// for a response (Open, Submit, End). It waits for messages until the next deadline.
//
// Thread safety: every method may be called from any thread. Only Post may wait.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <variant>

#include "engine/bounded_queue.h"
#include "engine/engine.h"
#include "engine/text/responses.h"

namespace diffserve {

class OutputLoop {
 public:
  // The calls to the engine, which outlives this. Both run on the output thread while the engine
  // may wait in Post, so neither may wait for the engine to deliver an event.
  struct EngineCalls {
    std::function<Status(Request)> submit;
    std::function<void(RequestId, FinishReason as)> cancel;
  };
  // `tokenizer` outlives this.
  OutputLoop(const Tokenizer& tokenizer, size_t outbox_capacity, EngineCalls engine);
  // Handles all messages first. Responses that have not ended by then end with kUnavailable.
  ~OutputLoop();

  // Assigns the id of `opened`. From now on only the output thread writes to `opened.stream`, until
  // it has pushed ResponseDone.
  ResponseId Open(OpenedResponse opened);
  // Passes on the result of the response's text work.
  void Submit(ResponseId id, TokenizedRequest tokenized);
  // Ends the response with `status`; ignored if it has ended.
  void End(ResponseId id, Status status);
  // Ends the response because its client has disconnected.
  void Abandon(ResponseId id);
  // Ends all of the owner's responses with that name. False if there is none (any more).
  bool EndByName(const std::string& owner, const std::string& request_id, const Status& status);
  // The engine's EventSink. Waits while the outbox is full; num_waits() counts this.
  void Post(TokenEvent event);

  ResponseStats stats() const;
  uint64_t num_waits() const { return num_waits_; }  // how often Post found the outbox full

 private:
  struct Tokenized {
    ResponseId id = 0;
    TokenizedRequest request;
  };
  struct Ending {
    ResponseId id = 0;
    Status status;
  };
  using Message = std::variant<OpenedResponse, Tokenized, Ending, TokenEvent>;
  using Name = std::tuple<std::string, std::string, ResponseId>;  // owner, request id, its own
  using NameView = std::tuple<const std::string&, const std::string&, ResponseId>;
  void Forget(const OpenedResponse& opened);
  void Run();
  void Handle(Message message);

  BoundedQueue<Message> outbox_;  // the capacity applies to token events; the number of responses
                                  // bounds the others
  std::atomic<uint64_t> num_waits_ = 0;
  std::atomic<ResponseId> last_id_ = 0;
  mutable std::mutex stats_mutex_;
  ResponseStats stats_;  // copied out at each response's end
  std::mutex names_mutex_;
  std::set<Name, std::less<>> names_;  // live responses that were not ended by name
  Responses responses_;                // output thread only
  std::thread thread_;                 // declared last: it uses all members above
};

inline OutputLoop::EngineCalls CallsTo(Engine& engine) {
  return {.submit = [&engine](Request request) { return engine.Submit(std::move(request)); },
          .cancel = [&engine](RequestId id, FinishReason as) { engine.Cancel(id, as); }};
}

}  // namespace diffserve
