// SPDX-License-Identifier: Apache-2.0
// MakeReasoningConstraint: the constraint of an answer that begins with reasoning, or may begin
// with it. Any token is allowed until the marker that ends the reasoning has been drawn; then the
// grammar applies. A token budget can end the reasoning by force.
#pragma once

#include <memory>
#include <optional>

#include "engine/text/text_marker.h"
#include "engine/token_constraint.h"

namespace diffserve {

struct ReasoningRules {
  // The marker that opens reasoning, if the model writes one; nullptr: the prompt has opened it.
  std::shared_ptr<const TextMarker> begin;
  std::shared_ptr<const TextMarker> end;
  int max_tokens = -1;  // reasoning tokens, after which the end marker is forced; -1: no limit
};

// `answer` constrains the text after the reasoning; nullptr: anything. REQUIRES: with an answer,
// `begin` is one token. If the answer itself may begin with that token, no reasoning comes before
// it.
std::unique_ptr<TokenConstraint> MakeReasoningConstraint(ReasoningRules rules,
                                                         std::unique_ptr<TokenConstraint> answer);

}  // namespace diffserve
