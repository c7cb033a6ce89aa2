#include "server/answer_constraints.h"

#include <utility>

namespace diffserve {

AnswerConstraints::AnswerConstraints(const Tokenizer& tokenizer, const ModelConfig& config,
                                     GrammarLimits limits)
    : tokenizer_(tokenizer), config_(config), limits_(limits) {}

Result<GrammarCompiler*> AnswerConstraints::Compiler() {
  std::lock_guard lock(mutex_);
  if (compiler_ == nullptr) {
    Result<std::unique_ptr<GrammarCompiler>> made = GrammarCompiler::Make(
        tokenizer_, config_.vocab_size, config_.eos_token_ids, limits_);
    if (!made.ok()) return made.status();
    compiler_ = std::move(made).value();
  }
  return compiler_.get();
}

Result<std::shared_ptr<const ReasoningMarker>> AnswerConstraints::Marker(const std::string& text) {
  std::lock_guard lock(mutex_);
  if (marker_ == nullptr || marker_text_ != text) {
    Result<std::shared_ptr<const ReasoningMarker>> made = ReasoningMarker::Make(
        tokenizer_, text, config_.vocab_size, config_.eos_token_ids);
    if (!made.ok()) return made.status();
    marker_text_ = text;
    marker_ = std::move(made).value();
  }
  return marker_;
}

// An answer that reasoning comes before begins within a text.
AnswerStart AnswerConstraints::StartOf(const GenerateRequest& request,
                                       std::span<const int32_t> prompt) const {
  AnswerStart start;
  start.skip_special_tokens = request.skip_special_tokens;
  if (!request.reasoning_end.empty()) return start;
  const TokenStream stream(tokenizer_.table(), request.skip_special_tokens, prompt);
  start.opens_text = stream.at_start();
  start.incomplete_character = stream.incomplete();
  return start;
}

// Null without error: nothing is constrained.
Result<std::unique_ptr<TokenConstraint>> AnswerConstraints::Make(const GenerateRequest& request,
                                                                 std::span<const int32_t> prompt) {
  std::unique_ptr<TokenConstraint> answer;
  if (request.grammar) {
    const Result<GrammarCompiler*> compiler = Compiler();
    if (!compiler.ok()) {
      return Status(compiler.status().code(), compiler.status().message(), request.grammar->param);
    }
    Result<std::unique_ptr<TokenConstraint>> compiled = (*compiler)->Compile(
        *request.grammar, StartOf(request, prompt));
    if (!compiled.ok()) return compiled.status();
    answer = std::move(compiled).value();
  }
  const bool budget = request.max_reasoning_tokens >= 0;
  if (request.reasoning_end.empty()) {
    if (budget) {
      return InvalidArgument(
          "max_reasoning_tokens needs to know where reasoning ends, which this request does not "
          "say: --reasoning-parser names the model's markers, and completions have none",
          "max_reasoning_tokens");
    }
    return answer;
  }
  if (answer == nullptr && !budget) return answer;
  const Result<std::shared_ptr<const ReasoningMarker>> marker = Marker(request.reasoning_end);
  if (!marker.ok()) return marker.status();
  return MakeReasoningConstraint(*marker, request.max_reasoning_tokens, std::move(answer));
}

Status AnswerConstraints::Constrain(const GenerateRequest& request,
                                    std::vector<Request>* continuations) {
  const auto of_each_prompt = static_cast<size_t>(request.n);
  for (size_t i = 0; i < continuations->size(); ++i) {
    Request& continuation = (*continuations)[i];
    if (i % of_each_prompt != 0) {
      const auto& first = (*continuations)[i - i % of_each_prompt].constraint;
      continuation.constraint = first == nullptr ? nullptr : first->Clone();
      continue;
    }
    Result<std::unique_ptr<TokenConstraint>> made = Make(request, continuation.prompt.ids());
    if (!made.ok()) return made.status();
    continuation.constraint = std::move(made).value();
  }
  return {};
}

}  // namespace diffserve
