// CrossOrigin: which web pages of other origins may use the server, as the Fetch standard's CORS
// protocol has it. A page names itself in the Origin field; before a request with a JSON body or a
// key it asks by a preflight, which carries no key.
// Thread safety: immutable.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "server/http/message.h"

namespace diffserve {

class CrossOrigin {
 public:
  CrossOrigin() = default;  // no page of another origin
  // Each of `lists` names origins (scheme://host[:port]) separated by commas, or "*" for all.
  // Error: the one at fault.
  static Result<CrossOrigin> Parse(const std::vector<std::string>& lists);

  // The answer to a preflight of an allowed origin; nullopt: `head` is no such request.
  std::optional<HttpReply> Preflight(const HttpHead& head) const;
  // What every reply says, to a request with this Origin field; empty: it has none, or none that
  // could be read.
  void AddFields(std::string_view origin, HttpReply* reply) const;

 private:
  bool Allows(std::string_view origin) const;

  std::vector<std::string> origins_;  // or "*" and no other
};

}  // namespace diffserve
