// Responses: every response from when it is opened until it ends, and the one writer of their
// streams. It turns the engine's token events into text, matches stop strings, and ends each
// response exactly once, whatever ends it: all of them go through End. A response for which memory
// runs out ends with that error, and ending asks for none. Used by the output thread alone; no
// thread and no clock, so that a test can drive it by hand.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/response_stream.h"
#include "engine/text/detokenizer.h"

namespace diffserve {

using ResponseId = uint64_t;  // one client request's; never used twice

// A response that has no tokens yet.
struct OpenedResponse {
  ResponseId id = 0;
  std::string request_id;  // the client's name for it; others may have the same
  std::shared_ptr<ResponseStream> stream;
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
};

// What the text work makes of a client's request.
struct TokenizedRequest {
  std::vector<PromptInfo> prompts;
  std::vector<Request> continuations;  // as many of each prompt, in order: one a choice; their ids
                                       // are given when they are submitted. The first one of a
                                       // prompt scores it for all of them.
  std::vector<std::string> stop;
  bool include_stop_in_output = false;
  bool skip_special_tokens = true;
  // Called when the response ends, however, if it was submitted; must neither wait nor throw. May
  // be empty.
  std::function<void()> on_end;
};

class Responses {
 public:
  // Where the outcome goes, beside the streams. Called on the thread that uses Responses.
  struct Ways {
    std::function<Status(Request)> submit;  // Engine::Submit
    // Engine::Cancel; `as` is kStop where the client has its whole answer (a stop string matched).
    // Neither it nor `ended` may throw.
    std::function<void(RequestId, FinishReason as)> cancel;
    std::function<void(const OpenedResponse&)> ended;  // once a response
  };
  // `tokenizer` outlives this.
  Responses(const Tokenizer& tokenizer, Ways ways);
  ~Responses();

  void Open(OpenedResponse opened);
  // Hands the continuations to the engine; a refusal ends the response with that status. A response
  // that has ended is ignored.
  void Submit(ResponseId id, TokenizedRequest tokenized);
  // An event of an unknown or ended continuation is dropped. Where prompts are scored, those of a
  // prompt's other continuations wait until the scores are there.
  void Take(TokenEvent event);
  // Ends the response and cancels what runs of it. One that has ended is ignored.
  void End(ResponseId id, Status status);
  // Ends those whose deadline has passed.
  void EndOverdue(std::chrono::steady_clock::time_point now);
  void EndAll(const Status& status);

  // The earliest one; time_point::max() if there is none.
  std::chrono::steady_clock::time_point next_deadline() const;
  size_t size() const { return responses_.size(); }

 private:
  struct Choice;
  struct Response;
  void End(Response& response, Status status) noexcept;
  // Does it; if memory runs out, that response ends.
  template <typename Work>
  void Guarded(ResponseId id, const Work& work);
  void SubmitTo(Response& response, TokenizedRequest tokenized);
  void TakeFor(Response& response, size_t index, TokenEvent& event);
  void TakeScores(Response& response, size_t first, TokenEvent& event);
  void TakeText(Response& response, Choice& choice, const TokenEvent& event);
  ResponseDelta Delta(const TokenEvent& event, const Response& response, Choice& choice) const;

  const Tokenizer& tokenizer_;
  const Ways ways_;
  RequestId last_request_ = 0;
  std::unordered_map<ResponseId, std::unique_ptr<Response>> responses_;
  std::unordered_map<RequestId, std::pair<Response*, size_t>> choices_;  // that still run
  std::set<std::pair<std::chrono::steady_clock::time_point, ResponseId>> deadlines_;
  const Status overdue_{StatusCode::kDeadlineExceeded, "the request's deadline has passed"};
};

}  // namespace diffserve
