// SPDX-License-Identifier: Apache-2.0
// MakeMarkedConstraint: the constraint of an answer that either has a required form or begins with
// a marker, such as that of tool calls or of reasoning. The model chooses with its first tokens.
#pragma once

#include <memory>

#include "engine/contract/token_constraint.h"
#include "engine/text/text_marker.h"

namespace diffserve {

struct MarkedAnswer {
  std::shared_ptr<const TextMarker> marker;
  // Constrains an answer that begins with the marker, including the marker itself; nullptr:
  // anything may follow it.
  std::unique_ptr<TokenConstraint> answer = nullptr;
  // A little whitespace that the form does not allow may come before the marker or the form.
  bool after_spaces = false;
  bool excludes_form = false;  // once the marker is complete, even if the form allows it as well
};

// If `form` can also begin like the marker, both stay possible as long as the text fits both.
std::unique_ptr<TokenConstraint> MakeMarkedConstraint(MarkedAnswer marked,
                                                      std::unique_ptr<TokenConstraint> form);

}  // namespace diffserve
