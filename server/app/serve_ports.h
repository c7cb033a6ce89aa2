// SPDX-License-Identifier: Apache-2.0
// What `serve` with one model and with several has in common: the ports and the process.
// Thread safety: pure functions, except RaiseFileLimit and ReturnFreedMemory, which are called at
// the start.
#pragma once

#include <string>

#include "server/api/head/api_key.h"
#include "server/app/options.h"
#include "server/http/server.h"

namespace diffserve {

// Debian's gRPC stops listening forever when file descriptors run out, so the process raises their
// limit to the maximum.
void RaiseFileLimit();
// Large memory returns to the system when it is freed. By itself malloc keeps blocks of the size of
// a body in the heap, whose holes doubled the memory of many bodies.
void ReturnFreedMemory();
// Whether only Host fields of this machine are answered, so that no web page of elsewhere reaches
// a server that is meant for this machine. No web page reaches a Unix socket.
bool ChecksHosts(const ServeOptions& serve, const ApiKeys& keys);
std::string Address(const std::string& host, int port);
std::string HttpAddress(const ServeOptions& serve, int port);  // as the ready line says
int TextThreads();
HttpServerOptions HttpPortOptions(const ServeOptions& serve);
int MaxMetadataBytes(const ServeOptions& serve);  // of a gRPC call

}  // namespace diffserve
