// The constraint of an answer that begins with reasoning, or may: everything may come until the
// marker that ends the reasoning has been drawn, then what the grammar allows. A budget of tokens
// ends the reasoning by force.
#pragma once

#include <memory>
#include <optional>

#include "engine/text/text_marker.h"
#include "engine/token_constraint.h"

namespace diffserve {

struct ReasoningRules {
  // What the model opens reasoning with, if it does; nullptr: the prompt has opened it.
  std::shared_ptr<const TextMarker> begin;
  std::shared_ptr<const TextMarker> end;
  int max_tokens = -1;  // of reasoning, then the end is forced; -1: no limit
};

// `answer`: what follows the reasoning; nullptr: anything. REQUIRES: with an answer, `begin` is one
// token. Where the answer itself may begin with that token, no reasoning comes before it.
std::unique_ptr<TokenConstraint> MakeReasoningConstraint(ReasoningRules rules,
                                                         std::unique_ptr<TokenConstraint> answer);

}  // namespace diffserve
