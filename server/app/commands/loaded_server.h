// SPDX-License-Identifier: Apache-2.0
// LoadServer: a model and the server over it, made from the command line's options. No port is open
// until Server::Listen, so the routes also work without sockets.
#pragma once

#include <memory>

#include "kernels/base/status.h"
#include "server/app/commands/commands.h"
#include "server/app/options.h"
#include "server/app/server.h"
#include "server/app/session/model_session.h"

namespace diffserve {

// A server and the model that its engine runs.
struct LoadedServer {
  std::unique_ptr<ModelSession> session;
  std::unique_ptr<Server> server;
};

// `form`: of the report of a slow load.
Result<LoadedServer> LoadServer(const SessionOptions& options, const ServeOptions& serve,
                                const ExecutorWrapper& wrap, ProgressLine::Form form);

// Logs what serves: the build, the device, the sizes, the parsers.
void LogServing(const LoadedServer& loaded);

}  // namespace diffserve
