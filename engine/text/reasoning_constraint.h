// The constraint of an answer that begins with reasoning, or may: everything may come until the
// marker that ends the reasoning has been drawn, then what the grammar allows. A budget of tokens
// ends the reasoning by force.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/text/tokenizer.h"
#include "engine/token_constraint.h"
#include "kernels/base/status.h"

namespace diffserve {

// The marker, prepared for a vocabulary. Const; any number of constraints share one.
class ReasoningMarker {
 public:
  static constexpr size_t kMaxBytes = 64;

  // `tokenizer` outlives it. `eos_token_ids`: what ends a text. Error: kInvalidArgument if the text
  // cannot be told apart from what comes before it, or the vocabulary cannot spell it.
  static Result<std::shared_ptr<const ReasoningMarker>> Make(const Tokenizer& tokenizer,
                                                             const std::string& text,
                                                             int vocab_size,
                                                             std::vector<int32_t> eos_token_ids);

  // How much of the marker an answer has begun with, whitespace aside, after `token`; nullopt: it
  // begins otherwise.
  std::optional<size_t> Begin(size_t matched, int32_t token) const;
  // How much of the marker the text ends with after `token`, if it ended with `matched` bytes of it
  // before. size(): it is complete.
  size_t Advance(size_t matched, int32_t token) const;
  size_t size() const { return text_.size(); }
  const std::vector<int32_t>& tokens() const { return tokens_; }  // that spell it
  // Tokens that have text behind the end of the marker, if the text ended with `matched` bytes.
  const std::vector<int32_t>& Overshooting(size_t matched) const { return overshooting_[matched]; }
  const std::vector<int32_t>& eos_token_ids() const { return eos_token_ids_; }
  int vocab_size() const { return vocab_size_; }

 private:
  ReasoningMarker(const Tokenizer& tokenizer, std::string text, int vocab_size,
                  std::vector<int32_t> eos_token_ids);
  size_t Step(size_t matched, char c) const;
  void FindOvershooting();

  const Tokenizer& tokenizer_;
  const std::string text_;
  const int vocab_size_;
  const std::vector<int32_t> eos_token_ids_;
  std::vector<size_t> borders_;  // [i]: length of the longest proper border of text_[0, i] (Knuth,
                                 // Morris, Pratt)
  std::vector<int32_t> tokens_;
  std::vector<std::vector<int32_t>> overshooting_;  // [size()]
};

struct ReasoningRules {
  // What the model opens reasoning with, if it does; nullptr: the prompt has opened it.
  std::shared_ptr<const ReasoningMarker> begin;
  std::shared_ptr<const ReasoningMarker> end;
  int max_tokens = -1;  // of reasoning, then the end is forced; -1: no limit
};

// `answer`: what follows the reasoning; nullptr: anything. REQUIRES: with an answer, `begin` is one
// token. Where the answer itself may begin with that token, no reasoning comes before it.
std::unique_ptr<TokenConstraint> MakeReasoningConstraint(ReasoningRules rules,
                                                         std::unique_ptr<TokenConstraint> answer);

}  // namespace diffserve
