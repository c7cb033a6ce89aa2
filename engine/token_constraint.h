// TokenConstraint: which tokens a sequence may draw next, after what it has drawn. A text thread
// makes one for each continuation; from Submit on the engine thread alone owns it, and it may be
// filled on a pool worker while that thread waits. It knows tokens that were accepted, so a
// preemption changes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/base/status.h"
#include "kernels/ops/token_mask.h"

namespace diffserve {

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Sets the bits of the tokens that may come next and clears all others. `mask`: [MaskWords].
  // Tokens that end the text (EOS) are set where it may end. Error: no token may come, or finding
  // out took more work than is allowed; the sequence ends with that status.
  virtual Status Fill(std::span<uint32_t> mask) = 0;
  // The next token. Error: it was not allowed, or the work limit, as above; it is not accepted
  // then.
  virtual Status Accept(int32_t token) = 0;
  // Takes back the last `count` accepted tokens. REQUIRES: so many were accepted.
  virtual void Rollback(int count) = 0;
  // One in the same state that shares none of it.
  virtual std::unique_ptr<TokenConstraint> Clone() const = 0;
};

}  // namespace diffserve
