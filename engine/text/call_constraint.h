// SPDX-License-Identifier: Apache-2.0
// MakeCallConstraint: the constraint of an answer that either has a required form or consists of
// tool calls. The model chooses with its first tokens: an answer that begins with the marker of
// calls is made of calls.
#pragma once

#include <memory>

#include "engine/text/text_marker.h"
#include "engine/token_constraint.h"

namespace diffserve {

// `calls` constrains an answer that begins with the marker, including the marker itself; nullptr:
// anything may follow it. If `form` can also begin like the marker, both stay possible as long as
// the text fits both.
std::unique_ptr<TokenConstraint> MakeCallConstraint(std::shared_ptr<const TextMarker> marker,
                                                    std::unique_ptr<TokenConstraint> calls,
                                                    std::unique_ptr<TokenConstraint> form);

}  // namespace diffserve
