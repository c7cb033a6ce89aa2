// SPDX-License-Identifier: Apache-2.0
// AnswerPrice: the maximum memory of an answer, computed from the request only. AnswerBudget: the
// memory limit of all answers together. A price covers the server's own structures for prompts and
// output until the reply is sent. In addition, a connection buffers 64 KiB of a reply.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "server/serving/request/generate_request.h"

namespace diffserve {

struct PromptSize {
  size_t tokens = 0;      // maximum
  size_t text_bytes = 0;  // of the kept text
};

struct AnswerPrice {
  size_t prompts = 0;  // ids, texts, log-probabilities and the fixed part of each continuation
  size_t output = 0;   // of all continuations
  size_t output_per_token = 0;  // growth of `output` per token; 0: it has another bound
  size_t total() const { return prompts + output; }
};

// `context`: maximum tokens of a prompt and its output. Output text counts with 16 bytes per token,
// which leaves room for the growth of strings.
AnswerPrice PriceOf(const GenerateRequest& request, std::span<const PromptSize> prompts,
                    size_t context, size_t max_stream_bytes);

// An upper estimate of the prompts' memory before any text work: a token has at least one byte, and
// templates and normalizers add little. The exact price follows from the tokens.
PromptSize BoundOf(const Prompt& prompt, const GenerateRequest& request, size_t context);

// OK if `price` is within `max_bytes`. If the request left max_tokens open, it is lowered until the
// price fits. Error: the price found and allowed, and the field that contributes most.
Status FitAnswer(AnswerPrice& price, size_t max_bytes, GenerateRequest& request);

// Bytes of all running answers.
// Thread safety: every method may be called from any thread.
class AnswerBudget {
 public:
  explicit AnswerBudget(size_t max_bytes) : state_(std::make_shared<State>(max_bytes)) {}

  // A reserved part of the budget. It is released on destruction and may outlive the budget.
  class Share;
  // nullptr if the budget has fewer bytes left.
  std::shared_ptr<Share> Take(size_t bytes) const;
  size_t taken_bytes() const;
  size_t max_bytes() const { return state_->max_bytes; }
  // Returns when nothing is reserved, or at `deadline`.
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

  // False, without effect, if the budget has fewer bytes left. One thread at a time.
  bool Resize(size_t bytes);

 private:
  const std::shared_ptr<State> state_;
  size_t bytes_ = 0;
};

}  // namespace diffserve
