// SPDX-License-Identifier: Apache-2.0
// MemberUse: what a route does with a member of its request.
#pragma once

namespace diffserve::testing {

enum class MemberUse {
  kServed,   // supported
  kIgnored,  // accepted without effect, whatever its value
  kRefused,  // 400 with its name, unless its value means off
  kUnknown,  // not a member of this route: accepted, or refused with --strict
};

}  // namespace diffserve::testing
