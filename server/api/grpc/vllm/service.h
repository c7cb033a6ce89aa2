// SPDX-License-Identifier: Apache-2.0
// vLLM's engine service over the Frontend, for llm-d's router and vLLM's gRPC clients:
// vllm.grpc.engine.VllmEngine. Thread safety: calls come on gRPC's threads.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>

#include "server/api/grpc/call_context.h"

namespace diffserve {

inline constexpr char kVllmServiceName[] = "vllm.grpc.engine.VllmEngine";

// `shared` outlives it.
std::unique_ptr<grpc::Service> NewVllmService(CallContext& shared);

}  // namespace diffserve
