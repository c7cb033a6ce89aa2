// SPDX-License-Identifier: Apache-2.0
// The one table from StatusCode to HTTP status, OpenAI error type and gRPC code.
#pragma once

#include "kernels/base/status.h"

namespace diffserve {

struct WireStatus {
  int http;
  const char* openai_type;  // error.type
  int grpc;                 // the number of grpc::StatusCode
};

constexpr WireStatus WireStatusOf(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return {200, "", 0};
    case StatusCode::kInvalidArgument:
    case StatusCode::kContextExceeded:
      return {400, "invalid_request_error", 3};
    case StatusCode::kTooLarge:
      return {413, "invalid_request_error", 8};
    case StatusCode::kUnauthenticated:
      return {401, "authentication_error", 16};
    case StatusCode::kNotFound:
      return {404, "not_found_error", 5};
    case StatusCode::kResourceExhausted:
      return {429, "rate_limit_error", 8};
    case StatusCode::kUnavailable:
    case StatusCode::kDeviceLost:
      return {503, "unavailable_error", 14};
    case StatusCode::kCancelled:
      return {499, "cancelled", 1};
    case StatusCode::kDeadlineExceeded:
      return {504, "timeout_error", 4};
    case StatusCode::kUnimplemented:
      return {501, "not_supported_error", 12};
    case StatusCode::kInternal:
      return {500, "server_error", 13};
  }
  return {500, "server_error", 13};
}

}  // namespace diffserve
