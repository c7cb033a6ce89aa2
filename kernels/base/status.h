// SPDX-License-Identifier: Apache-2.0
// Status and Result: a failure whose cause or remedy is outside the program, carried as a value. A
// broken invariant of our own is a DS_CHECK (check.h), never a Status. One table maps codes to HTTP
// and gRPC: server/serving/status_codes.h.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "kernels/process/check.h"

namespace diffserve {

enum class StatusCode {
  kOk,
  kInvalidArgument,    // the input is wrong; the message says what was found, what is allowed, and
                       // where
  kContextExceeded,    // likewise: the input exceeds the model's context
  kTooLarge,           // likewise: the input has too many bytes
  kUnauthenticated,    // no key, or a wrong one
  kNotFound,           // no such model, route or request
  kResourceExhausted,  // a limit is reached for now: retry later
  kUnavailable,        // draining, or the engine has died
  kDeviceLost,         // this process has no GPU (any more); a new process may get one
  kCancelled,          // the client went away or cancelled
  kDeadlineExceeded,   // the client's own deadline passed
  kUnimplemented,      // valid, but not offered by this build or model
  kInternal,           // our fault
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  // `param` names the request field or flag at fault, empty if none.
  Status(StatusCode code, std::string message, std::string param = {})
      : code_(code), message_(std::move(message)), param_(std::move(param)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::string& param() const { return param_; }

  // For kResourceExhausted and kUnavailable: when to try again. 0: not known.
  int retry_after_s() const { return retry_after_s_; }
  Status WithRetryAfter(int seconds) && {
    retry_after_s_ = seconds;
    return std::move(*this);
  }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
  std::string param_;
  int retry_after_s_ = 0;
};

inline Status InvalidArgument(std::string message, std::string param = {}) {
  return Status(StatusCode::kInvalidArgument, std::move(message), std::move(param));
}

// A value, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit on purpose
    DS_CHECK(!status_.ok(), "a Result without a value needs an error");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  // REQUIRES: ok().
  T& value() & {
    DS_CHECK(ok(), status_.message());
    return *value_;
  }
  const T& value() const& {
    DS_CHECK(ok(), status_.message());
    return *value_;
  }
  // By value, so that `for (x : F().value())` reads no destroyed object.
  T value() && {
    DS_CHECK(ok(), status_.message());
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

// *to becomes the Result's value. Error: the Result's.
template <typename T, typename To>
Status Assign(To* to, Result<T> from) {
  if (!from.ok()) return from.status();
  *to = std::move(from).value();
  return Status();
}

}  // namespace diffserve

// Returns the Status of `expression` to the caller if it is an error.
#define DS_RETURN_IF_ERROR(expression)            \
  do {                                            \
    ::diffserve::Status ds_status = (expression); \
    if (!ds_status.ok()) return ds_status;        \
  } while (false)
