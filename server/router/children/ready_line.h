// SPDX-License-Identifier: Apache-2.0
// The line that `diffserve serve` prints when it can answer. Thread safety: pure function.
#pragma once

#include <optional>
#include <string_view>

namespace diffserve {

struct ReadyPorts {
  int http = 0, grpc = 0;  // grpc is 0 with --no-grpc
};

// nullopt: it is another line.
std::optional<ReadyPorts> ParseReadyLine(std::string_view line);

}  // namespace diffserve
