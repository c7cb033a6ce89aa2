// SPDX-License-Identifier: Apache-2.0
#include "server/serving/answer/answer_constraints.h"

#include <string>
#include <utility>

#include "engine/text/marked_constraint.h"

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

Result<std::shared_ptr<const TextMarker>> AnswerConstraints::Marker(std::string_view text) {
  std::lock_guard lock(mutex_);
  if (const auto found = markers_.find(text); found != markers_.end()) return found->second;
  Result<std::shared_ptr<const TextMarker>> made = TextMarker::Make(
      tokenizer_, std::string(text), config_.vocab_size, config_.eos_token_ids);
  if (made.ok()) markers_.emplace(text, *made);
  return made;
}

AnswerStart AnswerConstraints::StartOf(const GenerateRequest& request,
                                       const PromptInfo& prompt) const {
  AnswerStart start;
  start.skip_special_tokens = request.skip_special_tokens;
  const TokenStream stream(tokenizer_.table(), request.skip_special_tokens, prompt.token_ids.ids());
  start.opens_text = stream.at_start();
  start.incomplete_character = stream.incomplete();
  return start;
}

Result<std::unique_ptr<TokenConstraint>> AnswerConstraints::Compile(
    const GrammarSpec& grammar, const AnswerStart& start, const GenerateRequest& request) {
  const Result<GrammarCompiler*> compiler = Compiler();
  if (!compiler.ok())
    return Status(compiler.status().code(), compiler.status().message(), grammar.param);
  if (!request.whitespace) return (*compiler)->Compile(grammar, start, request.client);
  GrammarSpec spaced = grammar;
  spaced.whitespace = request.whitespace;
  spaced.whitespace_param = request.names.whitespace;
  return (*compiler)->Compile(spaced, start, request.client);
}

// nullptr without error: the request has no form.
Result<std::unique_ptr<TokenConstraint>> AnswerConstraints::Form(const GenerateRequest& request,
                                                                 const AnswerStart& start) {
  std::unique_ptr<TokenConstraint> form;
  if (!request.grammar) return form;
  DS_RETURN_IF_ERROR(Assign(&form, Compile(*request.grammar, start, request)));
  // After the compilation: a fault of the form is named first.
  if (request.sampling.ignore_eos) {
    return InvalidArgument(std::string("ignore_eos cannot be combined with ") +
                               request.grammar->param +
                               ": the format says nothing about text after the answer's end",
                           "ignore_eos");
  }
  if (request.call_marker.empty()) return form;
  const Result<std::shared_ptr<const TextMarker>> marker = Marker(request.call_marker);
  if (!marker.ok()) return marker.status();
  std::unique_ptr<TokenConstraint> calls;
  if (request.call_grammar)
    DS_RETURN_IF_ERROR(Assign(
        &calls, Compile(*request.call_grammar, {.after_spaces = start.after_spaces}, request)));
  return MakeMarkedConstraint({*marker, std::move(calls)}, std::move(form));
}

// nullptr without error: there is no constraint.
Result<std::unique_ptr<TokenConstraint>> AnswerConstraints::Make(const GenerateRequest& request,
                                                                 const PromptInfo& prompt) {
  const bool budget = request.max_reasoning_tokens >= 0;
  if (request.reasoning == nullptr && budget) {
    return InvalidArgument(
        "max_reasoning_tokens needs to know where reasoning ends, but this request has no markers: "
        "they come from the chat template or --reasoning-parser, and completions have none",
        "max_reasoning_tokens");
  }
  const bool reasons = request.reasoning != nullptr && (request.grammar || budget) &&
                       prompt.reasoning != ReasoningStart::kClosed;
  if (!reasons) return Form(request, StartOf(request, prompt));
  if (prompt.reasoning == ReasoningStart::kOpen) return Reasoning(request, nullptr);
  const Result<std::shared_ptr<const TextMarker>> begin = Marker(request.reasoning->begin);
  if (!request.grammar) return begin.ok() ? Reasoning(request, *begin) : begin.status();
  std::unique_ptr<TokenConstraint> form;
  DS_RETURN_IF_ERROR(Assign(&form, Form(request, StartOf(request, prompt))));
  if (!begin.ok()) return form;  // no reasoning: the model's tokens cannot open it
  MarkedAnswer reasoned{.marker = *begin, .after_spaces = true, .excludes_form = budget};
  DS_RETURN_IF_ERROR(Assign(&reasoned.answer, Reasoning(request, *begin)));
  return MakeMarkedConstraint(std::move(reasoned), std::move(form));
}

// The form after the reasoning begins within a text.
Result<std::unique_ptr<TokenConstraint>> AnswerConstraints::Reasoning(
    const GenerateRequest& request, std::shared_ptr<const TextMarker> begin) {
  ReasoningRules rules;
  rules.begin = std::move(begin);
  rules.max_tokens = request.max_reasoning_tokens;
  DS_RETURN_IF_ERROR(Assign(&rules.end, Marker(request.reasoning->end)));
  AnswerStart start;
  start.skip_special_tokens = request.skip_special_tokens;
  AnswerAfterReasoning answer;
  DS_RETURN_IF_ERROR(Assign(&answer.form, Form(request, start)));
  start.after_spaces = true;
  DS_RETURN_IF_ERROR(Assign(&answer.after_spaces, Form(request, start)));
  return MakeReasoningConstraint(std::move(rules), std::move(answer));
}

Status AnswerConstraints::Constrain(const GenerateRequest& request, TokenizedRequest& tokenized) {
  const auto of_each_prompt = static_cast<size_t>(request.n);
  for (size_t i = 0; i < tokenized.continuations.size(); ++i) {
    Request& continuation = tokenized.continuations[i];
    if (const size_t choice = i % of_each_prompt; choice != 0) {
      const auto& first = tokenized.continuations[i - choice].constraint;
      continuation.constraint = first == nullptr ? nullptr : first->Clone();
      continue;
    }
    Result<std::unique_ptr<TokenConstraint>> made = Make(request,
                                                         tokenized.prompts[i / of_each_prompt]);
    if (!made.ok()) return made.status();
    continuation.constraint = std::move(made).value();
  }
  return {};
}

}  // namespace diffserve
