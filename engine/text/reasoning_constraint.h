// SPDX-License-Identifier: Apache-2.0
// MakeReasoningConstraint: the constraint of an answer that begins with reasoning. Any token is
// allowed until the marker that ends the reasoning has been drawn; then the form of the answer
// applies. A token budget can end the reasoning by force. Markers are found in the text, however
// the tokens cut it.
#pragma once

#include <memory>

#include "engine/contract/token_constraint.h"
#include "engine/text/text_marker.h"

namespace diffserve {

struct ReasoningRules {
  // The marker that opens reasoning, if the model writes one; nullptr: the reasoning has begun.
  std::shared_ptr<const TextMarker> begin;
  std::shared_ptr<const TextMarker> end;
  int max_tokens = -1;  // reasoning tokens, after which the end marker is forced; -1: no limit
};

// The text after the reasoning and the whitespace that follows it.
struct AnswerAfterReasoning {
  std::unique_ptr<TokenConstraint> form = nullptr;  // nullptr: anything
  // The form over tokens that lack the whitespace that they begin with; nullptr: the first token of
  // the form begins with no other whitespace than the form allows.
  std::unique_ptr<TokenConstraint> after_spaces = nullptr;
};

// Without a form, the model need not open the reasoning.
std::unique_ptr<TokenConstraint> MakeReasoningConstraint(ReasoningRules rules,
                                                         AnswerAfterReasoning answer);

}  // namespace diffserve
