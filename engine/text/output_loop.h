// OutputLoop: the output thread, which alone owns all Responses and so is the one writer of every
// stream. It takes messages from an outbox: the engine's token events, and what the front end says
// of a response (opened, tokenized, to be ended). It pops with the time limit of the next deadline.
//
// Thread safety: every method may be called from any thread. Only Post waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <variant>

#include "engine/bounded_queue.h"
#include "engine/engine.h"
#include "engine/text/responses.h"

namespace diffserve {

class OutputLoop {
 public:
  // The ways to the engine, which outlives this. Both are called on the output thread while the
  // engine may wait in Post, so neither may wait for the engine's delivery.
  struct EngineWays {
    std::function<Status(Request)> submit;
    std::function<void(RequestId, FinishReason as)> cancel;
  };
  // `tokenizer` outlives this.
  OutputLoop(const Tokenizer& tokenizer, size_t outbox_capacity, EngineWays engine);
  // Ends after the last message. What has not ended by then ends with kUnavailable.
  ~OutputLoop();

  // From now on the output thread alone writes to `opened.stream`, until it has pushed
  // ResponseDone. The id of `opened` is given here. Throws std::bad_alloc without effect.
  ResponseId Open(OpenedResponse opened);
  // The text work of the response is done.
  void Submit(ResponseId id, TokenizedRequest tokenized);
  // Ends the response with `status`; ignored if it has ended. Asks for no memory: the message was
  // made by Open.
  void End(ResponseId id, Status status) noexcept;
  // The same because its client has gone.
  void Abandon(ResponseId id) noexcept;
  // Ends the response that was opened last. False if there is none.
  bool EndNewest(Status status) noexcept;
  // Ends all responses of that name. False if there is none (any more).
  bool EndByName(const std::string& request_id, const Status& status);
  // The engine's EventSink. Waits while the outbox is full (counted).
  void Post(TokenEvent event);

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
  using Messages = std::list<Message>;  // one, unless it was sent
  using Name = std::pair<std::string, ResponseId>;
  struct NameOrder {
    using is_transparent = void;
    bool operator()(const auto& a, const auto& b) const {
      return std::tie(a.first, a.second) < std::tie(b.first, b.second);
    }
  };
  Messages TakeEnding(ResponseId id) noexcept;
  void Forget(const OpenedResponse& opened) noexcept;
  void Run();
  void Handle(Message message);

  BoundedQueue<Message> outbox_;  // of token events: the others are bounded by the responses
  std::atomic<uint64_t> num_waits_ = 0;
  std::atomic<ResponseId> last_id_ = 0;
  std::mutex live_mutex_;                   // of the two below
  std::map<ResponseId, Messages> endings_;  // of the responses that live: their Ending
  std::set<Name, NameOrder> names_;         // of the same, unless they were ended by name
  Responses responses_;                     // output thread only
  std::thread thread_;                      // last: it uses all of the above
};

inline OutputLoop::EngineWays WaysTo(Engine& engine) {
  return {.submit = [&engine](Request request) { return engine.Submit(std::move(request)); },
          .cancel = [&engine](RequestId id, FinishReason as) { engine.Cancel(id, as); }};
}

}  // namespace diffserve
