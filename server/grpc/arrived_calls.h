// How many calls have reached a server, by gRPC's own count (channelz). What it ends before a
// method or an interceptor could see it, as a call whose deadline passes meanwhile, is in no other.
#pragma once

#include <cstdint>

namespace diffserve {

// The server that was started last in this process, or 0.
intptr_t NewestGrpcServer();
// Calls of every service since the server's start; 0 for an unknown server.
int64_t NumArrivedCalls(intptr_t server);

}  // namespace diffserve
