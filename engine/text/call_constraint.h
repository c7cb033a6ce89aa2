// The constraint of an answer that is held to a form and may be calls of tools instead: the model
// chooses by its first tokens. An answer that begins with the marker of calls is made of them.
#pragma once

#include <memory>

#include "engine/text/text_marker.h"
#include "engine/token_constraint.h"

namespace diffserve {

// `calls`: what a text that begins with the marker may be, the marker included; nullptr: anything.
// Where `form` itself may begin like the marker, both go on as long as they can.
std::unique_ptr<TokenConstraint> MakeCallConstraint(std::shared_ptr<const TextMarker> marker,
                                                    std::unique_ptr<TokenConstraint> calls,
                                                    std::unique_ptr<TokenConstraint> form);

}  // namespace diffserve
