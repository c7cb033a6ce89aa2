// SPDX-License-Identifier: Apache-2.0
// Malformed, hostile and odd HTTP requests, each with the status that answers it. 200: the request
// is served (it asks for /livez). Run against the reader alone (in one piece and byte by byte) and
// against a listening server.
#pragma once

#include <string>
#include <vector>

namespace diffserve::testing {

struct HttpCase {
  std::string name;
  std::string bytes;
  int status;
};

std::vector<HttpCase> HttpHeadCases();
// Framing of bodies. A request that is framed well gets 405 (there is no POST on /livez).
std::vector<HttpCase> HttpBodyCases();

}  // namespace diffserve::testing
