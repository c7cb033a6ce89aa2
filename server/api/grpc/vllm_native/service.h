// SPDX-License-Identifier: Apache-2.0
// vLLM's own gRPC over the Frontend, for NVIDIA Dynamo's sidecar: vllm.Inference and vllm.Control.
// Thread safety: calls come on gRPC's threads.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>

#include "server/api/grpc/call_context.h"

namespace diffserve {

inline constexpr char kNativeInferenceName[] = "vllm.Inference";
inline constexpr char kNativeControlName[] = "vllm.Control";

// `shared` outlives them.
std::unique_ptr<grpc::Service> NewNativeInferenceService(CallContext& shared);
std::unique_ptr<grpc::Service> NewNativeControlService(CallContext& shared);

}  // namespace diffserve
