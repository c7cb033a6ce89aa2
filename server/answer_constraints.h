// AnswerConstraints: the constraints of a request's continuations, from what the request says of
// the answer's form and of its reasoning. The compiler's tables of the vocabulary are made for the
// first request that needs them.
// Thread safety: every method may be called from any thread; text threads do.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/text/grammar.h"
#include "engine/text/reasoning_constraint.h"
#include "server/frontend.h"

namespace diffserve {

class AnswerConstraints {
 public:
  // Both outlive it.
  AnswerConstraints(const Tokenizer& tokenizer, const ModelConfig& config, GrammarLimits limits);

  // Gives each of the request's continuations its constraint, if there is one. Error: what the
  // request asks for cannot be enforced.
  Status Constrain(const GenerateRequest& request, std::vector<Request>* continuations);

 private:
  Result<GrammarCompiler*> Compiler();
  Result<std::shared_ptr<const ReasoningMarker>> Marker(const std::string& text);
  AnswerStart StartOf(const GenerateRequest& request, std::span<const int32_t> prompt) const;
  Result<std::unique_ptr<TokenConstraint>> Make(const GenerateRequest& request,
                                                std::span<const int32_t> prompt);

  const Tokenizer& tokenizer_;
  const ModelConfig& config_;
  const GrammarLimits limits_;
  std::mutex mutex_;
  std::unique_ptr<GrammarCompiler> compiler_;
  // The last one asked for, by its text: a server has one or two.
  std::string marker_text_;
  std::shared_ptr<const ReasoningMarker> marker_;
};

}  // namespace diffserve
