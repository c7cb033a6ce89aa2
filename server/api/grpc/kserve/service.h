// SPDX-License-Identifier: Apache-2.0
// The Open Inference Protocol v2 (KServe, Triton) over the Frontend:
// inference.GRPCInferenceService. Thread safety: calls come on gRPC's threads.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/api/grpc/call_context.h"

namespace diffserve {

inline constexpr char kKserveServiceName[] = "inference.GRPCInferenceService";

// `shared` outlives it.
std::unique_ptr<grpc::Service> NewKserveService(CallContext& shared);

// The serialized reply of ServerLive or ServerReady; nullopt: `method` is another one.
std::optional<std::string> KserveHealthReply(std::string_view method, bool serving);

}  // namespace diffserve
