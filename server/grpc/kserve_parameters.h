// The parameters of a request of the Open Inference Protocol v2: the table is in
// kserve_parameters.cc. Each has one type; one that is not in the table is refused by name.
#pragma once

#include <string>
#include <string_view>

#include "server/grpc/kserve_messages.h"

namespace diffserve {

inline constexpr size_t kMaxCitedBytes = 64;  // of a name that a client made up

inline std::string Cited(std::string_view name) {
  return "'" + std::string(name.substr(0, kMaxCitedBytes)) + "'";
}

// `streams`: as FromProto's. The Frontend checks ranges later. Error: kInvalidArgument with the
// parameter.
Status ReadInferParameters(const inference::ModelInferRequest& message, bool streams,
                           InferRequest& to);

}  // namespace diffserve
