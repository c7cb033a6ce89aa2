// What an answer can take of the server's memory, from what a request asks for alone, and the
// budget of all answers together. It covers what the server's own structures hold of prompts and
// output until the reply has left; beside it a connection makes 64 KiB of a reply at a time.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "server/frontend.h"

namespace diffserve {

struct PromptSize {
  size_t tokens = 0;      // at most
  size_t text_bytes = 0;  // that the answer keeps
};

struct AnswerPrice {
  size_t prompts = 0;  // ids, texts and log-probabilities, and what each continuation needs
  size_t output = 0;   // of all continuations
  size_t output_per_token = 0;  // if each of them grows by one; 0 if it is bounded otherwise
  size_t total() const { return prompts + output; }
};

// `context`: tokens of a prompt and its output together. The text of output counts with 16 bytes a
// token, which leaves room for how strings grow.
AnswerPrice PriceOf(const GenerateRequest& request, std::span<const PromptSize> prompts,
                    size_t context, size_t max_stream_bytes);

// What the prompts come to before any text work: a token is a byte at least, and templates and
// normalisers add little; the tokens themselves tell later.
PromptSize BoundOf(const Prompt& prompt, const GenerateRequest& request, size_t context);

// Ok if `price` is within `max_bytes`. A request that left max_tokens open gets fewer tokens
// instead, if that is enough. Error: what was found and allowed, and the field that makes most.
Status FitAnswer(AnswerPrice& price, size_t max_bytes, GenerateRequest& request);

// Bytes of all answers under way.
// Thread safety: every method may be called from any thread.
class AnswerBudget {
 public:
  explicit AnswerBudget(size_t max_bytes) : state_(std::make_shared<State>(max_bytes)) {}

  // A part of the budget, given back when it is destroyed; may outlive the budget.
  class Share;
  // nullptr if so much is not left.
  std::shared_ptr<Share> Take(size_t bytes) const;
  size_t taken_bytes() const;
  size_t max_bytes() const { return state_->max_bytes; }
  // Returns when nothing is taken any more, or at `deadline`.
  void WaitUntilFree(std::chrono::steady_clock::time_point deadline) const;

 private:
  struct State {
    explicit State(size_t max) : max_bytes(max) {}
    bool Add(size_t bytes);
    void Free(size_t bytes);
    const size_t max_bytes;
    std::mutex mutex;
    std::condition_variable freed;
    size_t taken = 0;
  };
  std::shared_ptr<State> state_;
};

class AnswerBudget::Share {
 public:
  explicit Share(std::shared_ptr<State> state) : state_(std::move(state)) {}
  ~Share() { state_->Free(bytes_); }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

  // False, and unchanged, if the budget has not so much. One thread at a time.
  bool Resize(size_t bytes);

 private:
  const std::shared_ptr<State> state_;
  size_t bytes_ = 0;
};

}  // namespace diffserve
