// SPDX-License-Identifier: Apache-2.0
// Responses: all open responses, and the only writer of their streams. It turns the engine's token
// events into text, matches stop strings, and ends each response exactly once, always through End.
// Used only by the output thread; it has no thread and no clock, so a test can drive it directly.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/contract/stats.h"
#include "engine/response_stream.h"
#include "engine/text/detokenizer.h"

namespace diffserve {

using ResponseId = uint64_t;  // one per client request; never reused

// A response that has no tokens yet.
struct OpenedResponse {
  ResponseId id = 0;
  std::string owner = {};  // the client, which alone can end it by its name
  std::string request_id;  // the client's name for it; need not be unique
  std::shared_ptr<ResponseStream> stream;
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
};

// A client's request after the text work.
struct TokenizedRequest {
  std::vector<PromptInfo> prompts;
  std::vector<Request> continuations;  // choices in order, equally many per prompt. Their ids are
                                       // assigned at submission. The first choice of a prompt
                                       // scores it for all of them
  std::vector<std::string> stop;
  bool include_stop_in_output = false;
  bool skip_special_tokens = true;
};

class Responses {
 public:
  // Calls to the surroundings. They run on the thread that uses Responses.
  struct Callbacks {
    std::function<Status(Request)> submit;  // Engine::Submit
    // Engine::Cancel. `as` is kStop if the client has its whole answer (a stop string matched).
    std::function<void(RequestId, FinishReason as)> cancel;
    std::function<void(const OpenedResponse&)> ended;  // once per response
  };
  // `tokenizer` outlives this.
  Responses(const Tokenizer& tokenizer, Callbacks callbacks);
  ~Responses();

  void Open(OpenedResponse opened);
  // Submits the continuations to the engine; a refusal ends the response with that status. A
  // response that has ended is ignored.
  void Submit(ResponseId id, TokenizedRequest tokenized);
  // Handles an event; one of an unknown or ended continuation is dropped. If prompts are scored,
  // events of a prompt's other continuations wait until its scores have come.
  void Take(TokenEvent event);
  // Ends the response and cancels its running continuations. Ignored if it has ended.
  void End(ResponseId id, Status status);
  // Ends all responses whose deadline has passed.
  void EndOverdue(std::chrono::steady_clock::time_point now);
  void EndAll(const Status& status);

  // The earliest deadline; time_point::max() if there is none.
  std::chrono::steady_clock::time_point next_deadline() const;
  const ResponseStats& stats() const { return stats_; }
  size_t size() const { return responses_.size(); }

 private:
  struct Choice;
  struct Response;
  void End(Response& response, Status status);
  void Count(const Response& response);
  void SubmitTo(Response& response, TokenizedRequest tokenized);
  void TakeFor(Response& response, size_t index, TokenEvent& event);
  void TakeScores(Response& response, size_t first, TokenEvent& event);
  void TakeText(Response& response, Choice& choice, const TokenEvent& event);
  ResponseDelta Delta(const TokenEvent& event, const Response& response, Choice& choice) const;

  const Tokenizer& tokenizer_;
  const Callbacks callbacks_;
  RequestId last_request_ = 0;
  ResponseStats stats_;
  std::unordered_map<ResponseId, std::unique_ptr<Response>> responses_;
  std::unordered_map<RequestId, std::pair<Response*, size_t>> choices_;  // of running continuations
  std::set<std::pair<std::chrono::steady_clock::time_point, ResponseId>> deadlines_;
};

}  // namespace diffserve
