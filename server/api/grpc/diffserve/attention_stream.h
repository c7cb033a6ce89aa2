// SPDX-License-Identifier: Apache-2.0
// One Attention call of the gRPC port: from its request to the last item of its stream.
#pragma once

#include "diffserve/v1/inference.pb.h"
#include "server/api/grpc/call_context.h"
#include "server/api/grpc/wire_request.h"

namespace diffserve {

// The reactor keeps itself alive until gRPC says that the call is over.
grpc::ServerWriteReactor<v1::AttentionResponse>* BeginAttention(
    CallContext& shared, grpc::CallbackServerContext* context,
    const WireRequest<v1::AttentionRequest>& request);

}  // namespace diffserve
