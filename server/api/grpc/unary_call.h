// SPDX-License-Identifier: Apache-2.0
// Shared parts of the gRPC port's unary calls: the key check, the counter and the log line.
// Thread safety: any thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include "server/api/grpc/call_context.h"
#include "server/api/grpc/stream_call.h"

namespace diffserve {

// Ends a call, once.
inline void EndUnary(CallContext& shared, const CallRecord& record, const Status& status,
                     grpc::ServerUnaryReactor* reactor) {
  const grpc::Status wire = record.ToGrpc(status);
  shared.End(record, wire);
  reactor->Finish(wire);
}

enum class CallAccess { kWithKey, kForAll };

// Runs a call that `body(client)` answers immediately. `request` is the status of its message.
template <typename Body>
grpc::ServerUnaryReactor* AnswerUnary(const char* method, CallContext& shared,
                                      grpc::CallbackServerContext* context, const Status& request,
                                      CallAccess access, const Body& body) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const CallRecord record(method, shared.watch, context);
  const Status& allowed = access == CallAccess::kWithKey ? record.access() : record.entry();
  const Status& checked = allowed.ok() ? request : allowed;
  EndUnary(shared, record, checked.ok() ? body(record.client()) : checked, reactor);
  return reactor;
}

}  // namespace diffserve
