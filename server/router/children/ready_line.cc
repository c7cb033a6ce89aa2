// SPDX-License-Identifier: Apache-2.0
#include "server/router/children/ready_line.h"

#include <charconv>

namespace diffserve {
namespace {

// The port of "KEY=HOST:PORT " in the line; 0: there is none.
int PortOf(std::string_view line, std::string_view key) {
  const size_t begin = line.find(key);
  if (begin == std::string_view::npos) return 0;
  std::string_view address = line.substr(begin + key.size());
  address = address.substr(0, address.find(' '));
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) return 0;
  const std::string_view digits = address.substr(colon + 1);
  int port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  const bool is_port = error == std::errc() && end == digits.data() + digits.size() && port > 0 &&
                       port < 65536;
  return is_port ? port : 0;
}

}  // namespace

std::optional<ReadyPorts> ParseReadyLine(std::string_view line) {
  if (!line.starts_with("ready ")) return std::nullopt;
  line = line.substr(0, line.find(" model="));
  const ReadyPorts ports = {PortOf(line, " http="), PortOf(line, " grpc=")};
  if (ports.http == 0) return std::nullopt;
  return ports;
}

}  // namespace diffserve
