// SPDX-License-Identifier: Apache-2.0
// AnswerConstraints: makes the constraints of a request's continuations from its answer format and
// its reasoning settings. The compiler's vocabulary tables are built at the first request that
// needs them.
// Thread safety: every method may be called from any thread; text threads do.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "engine/text/grammar.h"
#include "engine/text/reasoning_constraint.h"
#include "engine/text/responses.h"
#include "engine/text/tokenizer.h"
#include "models/model_config.h"
#include "server/serving/request/generate_request.h"

namespace diffserve {

class AnswerConstraints {
 public:
  // Both outlive it.
  AnswerConstraints(const Tokenizer& tokenizer, const ModelConfig& config, GrammarLimits limits);

  // Adds to each continuation its constraint, if the request has one. Error: a requested constraint
  // cannot be enforced.
  Status Constrain(const GenerateRequest& request, TokenizedRequest& tokenized);

 private:
  Result<GrammarCompiler*> Compiler();
  Result<std::shared_ptr<const TextMarker>> Marker(std::string_view text);
  // `grammar`: of `request`.
  Result<std::unique_ptr<TokenConstraint>> Compile(const GrammarSpec& grammar,
                                                   const AnswerStart& start,
                                                   const GenerateRequest& request);
  AnswerStart StartOf(const GenerateRequest& request, const PromptInfo& prompt) const;
  // The answer's format, or tool calls.
  Result<std::unique_ptr<TokenConstraint>> Form(const GenerateRequest& request,
                                                const AnswerStart& start);
  // `begin`: the marker that opens the reasoning; nullptr: it has begun.
  Result<std::unique_ptr<TokenConstraint>> Reasoning(const GenerateRequest& request,
                                                     std::shared_ptr<const TextMarker> begin);
  Result<std::unique_ptr<TokenConstraint>> Make(const GenerateRequest& request,
                                                const PromptInfo& prompt);

  const Tokenizer& tokenizer_;
  const ModelConfig& config_;
  const GrammarLimits limits_;
  std::mutex mutex_;
  std::unique_ptr<GrammarCompiler> compiler_;
  std::map<std::string, std::shared_ptr<const TextMarker>, std::less<>> markers_;
};

}  // namespace diffserve
