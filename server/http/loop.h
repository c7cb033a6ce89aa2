// SPDX-License-Identifier: Apache-2.0
// HttpLoop: one I/O thread and its connections. A connection stays on its loop from Adopt to its
// end.
#pragma once

#include <memory>

#include "server/http/listen/connection_table.h"
#include "server/http/session/shared.h"

namespace diffserve {

class HttpLoop {
 public:
  explicit HttpLoop(std::shared_ptr<HttpShared> shared);
  ~HttpLoop();  // cuts the remaining connections

  // Takes ownership of a connected socket. May be called from any thread, as may StopSessions.
  // `family`: AF_INET, AF_INET6 or AF_UNIX.
  void Adopt(int socket_fd, int family, std::unique_ptr<ConnectionTable::Entry> entry);
  void StopSessions(HttpEnding ending);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace diffserve
