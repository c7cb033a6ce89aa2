// SPDX-License-Identifier: Apache-2.0
// What a request of a chat route comes to, as JSON, so that tests can say that a body of one API
// means the same as a body of /v1/chat/completions.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <variant>

#include "server/serving/answer/answer_request.h"

namespace diffserve::testing {

inline nlohmann::json ChatSummary(const AnswerRequest& request) {
  const GenerateRequest& generate = request.generate;
  const auto& conversation = std::get<Conversation>(generate.prompts.at(0));
  const TemplateJson written = TemplateJsonOf(conversation);
  const auto parsed = [](const std::string& text) {
    return text.empty() ? nlohmann::json() : nlohmann::json::parse(text);
  };
  return {{"model", generate.model},
          {"messages", parsed(written.messages)},
          {"tools", parsed(written.tools)},
          {"kwargs", parsed(written.kwargs)},
          {"begins_answer", conversation.add_generation_prompt},
          {"continues_message", conversation.continues_final_message},
          {"stream", request.stream},
          {"include_reasoning", request.include_reasoning},
          {"temperature", generate.sampling.temperature},
          {"top_p", generate.sampling.top_p},
          {"top_k", generate.sampling.top_k},
          {"seed", generate.sampling.seed},
          {"ignore_eos", generate.sampling.ignore_eos},
          {"stop", generate.stop},
          {"truncate", generate.truncate_prompt_tokens.value_or(0)},
          {"grammar", generate.grammar ? generate.grammar->text : "none"},
          {"call_grammar", generate.call_grammar ? generate.call_grammar->text : "none"},
          {"may_call", request.answer.tools != nullptr},
          {"must_call", request.answer.forced_call},
          {"must_call_name", request.answer.forced_name},
          {"parallel", request.answer.parallel}};
}

template <typename Request>
nlohmann::json ChatSummary(const Result<Request>& request) {
  EXPECT_TRUE(request.ok()) << request.status().message();
  return request.ok() ? ChatSummary(*request) : nlohmann::json();
}

}  // namespace diffserve::testing
