// SPDX-License-Identifier: Apache-2.0
// The parameters of a request of the Open Inference Protocol v2. The table in kserve_parameters.cc
// gives each one its type; others are refused by name.
#pragma once

#include <string>
#include <string_view>

#include "server/api/grpc/kserve/messages.h"

namespace diffserve {

inline constexpr size_t kMaxCitedBytes = 64;  // of an unknown name in an error message

inline std::string Cited(std::string_view name) {
  return "'" + std::string(name.substr(0, kMaxCitedBytes)) + "'";
}

// `streams`: as in FromProto. The Frontend checks ranges later. Error: kInvalidArgument with the
// parameter.
Status ReadInferParameters(const inference::ModelInferRequest& message, bool streams,
                           InferRequest& to);

}  // namespace diffserve
