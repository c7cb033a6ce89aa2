// SPDX-License-Identifier: Apache-2.0
// vLLM's engine service over the Frontend, for llm-d's router and vLLM's gRPC clients:
// vllm.grpc.engine.VllmEngine. Thread safety: calls come on gRPC's threads.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/api/grpc/call_context.h"

namespace diffserve {

inline constexpr char kVllmServiceName[] = "vllm.grpc.engine.VllmEngine";

// `shared` outlives it.
std::unique_ptr<grpc::Service> NewVllmService(CallContext& shared);

// The serialized reply of HealthCheck; nullopt: `method` is another one.
std::optional<std::string> VllmHealthReply(std::string_view method, bool serving);

}  // namespace diffserve
