// SPDX-License-Identifier: Apache-2.0
// One SubscribeKvEvents call of vLLM's engine service: a router follows the prefix cache.
#pragma once

#include <grpcpp/grpcpp.h>

#include "server/api/grpc/call_context.h"
#include "server/api/grpc/wire_request.h"
#include "server/observe/kv_event_feed.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace diffserve {

// The reactor keeps itself alive until gRPC says that the call is over.
grpc::ServerWriteReactor<smg::grpc::common::KvEventBatch>* BeginKvEvents(
    CallContext& shared, grpc::CallbackServerContext* context,
    const WireRequest<smg::grpc::common::SubscribeKvEventsRequest>& request);

// A hash of 64 bits becomes the signed number of the same bits.
void FillKvEvents(const NumberedKvEvents& batch, int page_size,
                  smg::grpc::common::KvEventBatch& out);

}  // namespace diffserve
