// SPDX-License-Identifier: Apache-2.0
// TokenConstraint: decides which next tokens are allowed for a sequence, given the tokens drawn so
// far. A text thread makes one per continuation. From Submit on only the engine thread owns it; a
// pool worker may use it while that thread waits. Its state, and so when it exceeds a work limit,
// depends only on accepted tokens: a preemption changes nothing, and guesses are tried on a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/ops/token_mask.h"

namespace diffserve {

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Sets the bits of the tokens that may come next and clears all others. `mask`: [MaskWords].
  // Tokens that end the text (EOS) are set where the text may end. Error: no token may come; with
  // kInternal the constraint can go no further, as at its work limit, and the answer ends as at its
  // limit of tokens: the client could do no better by asking again. Any other status ends the
  // sequence with it.
  virtual Status Fill(std::span<uint32_t> mask) = 0;
  // Accepts the next token, after the work of Fill if that was not called for it. Error: as Fill's;
  // no token may come any more then.
  virtual Status Accept(int32_t token) = 0;
  // Accepts text before the first token, which is the end of a token of other text. Error: it is
  // not allowed there, as in a constraint that takes no such text; no token may come any more then.
  virtual Status AcceptBytes(std::string_view bytes) {
    return Status(StatusCode::kInternal, "'" + std::string(bytes) + "' may not come");
  }
  // Tokens of text that must come next, but perhaps for whitespace; at most `limit`, often none.
  // Text can be spelled in several ways and this is a likely one, so it is only good as a guess.
  virtual std::vector<int32_t> Forced(int limit) const {
    static_cast<void>(limit);
    return {};
  }
  // An independent copy in the same state.
  virtual std::unique_ptr<TokenConstraint> Clone() const = 0;
};

}  // namespace diffserve
