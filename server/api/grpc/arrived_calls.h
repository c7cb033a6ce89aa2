// SPDX-License-Identifier: Apache-2.0
// How many calls have reached a server, by gRPC's own count (channelz). It includes calls that gRPC
// ends before a method or an interceptor sees them, for example at their deadline.
#pragma once

#include <cstdint>

namespace diffserve {

// The id of the server that was started last in this process, or 0.
intptr_t NewestGrpcServer();
// Calls of every service since the server's start; 0 for an unknown server.
int64_t NumArrivedCalls(intptr_t server);

}  // namespace diffserve
