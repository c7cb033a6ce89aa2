// SPDX-License-Identifier: Apache-2.0
// Our own service over the Frontend: diffserve.v1.Inference. Thread safety: calls come on gRPC's
// threads.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>

#include "server/api/grpc/call_context.h"

namespace diffserve {

inline constexpr char kInferenceServiceName[] = "diffserve.v1.Inference";

// `shared` outlives it.
std::unique_ptr<grpc::Service> NewInferenceService(CallContext& shared);

}  // namespace diffserve
