// SPDX-License-Identifier: Apache-2.0
// The Open Inference Protocol v2 (KServe, Triton) over the Frontend:
// inference.GRPCInferenceService. Thread safety: calls come on gRPC's threads.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>

#include "server/api/grpc/call_context.h"

namespace diffserve {

inline constexpr char kKserveServiceName[] = "inference.GRPCInferenceService";

// `shared` outlives it.
std::unique_ptr<grpc::Service> NewKserveService(CallContext& shared);

}  // namespace diffserve
