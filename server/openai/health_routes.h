// HealthRoutes: /livez, /readyz and /health alone, for a port of their own (--health-port): its
// thread and its connections are nobody else's, so a probe is answered however many clients there
// are. No log line, no counter, no key.
#pragma once

#include "server/health.h"
#include "server/http/message.h"

namespace diffserve {

// `health` outlives the HttpServer that uses it.
HttpService HealthRoutes(const Health& health);

}  // namespace diffserve
