// SPDX-License-Identifier: Apache-2.0
// HealthRoutes: only /livez, /readyz and /health, for a port of their own (--health-port). The port
// has its own thread and connections, so probes are answered however many clients there are.
// Requests are not logged or counted and need no key.
#pragma once

#include "server/http/message.h"
#include "server/observe/health.h"

namespace diffserve {

// `health` outlives the HttpServer that uses it.
HttpService HealthRoutes(const Health& health);

}  // namespace diffserve
