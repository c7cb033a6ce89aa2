// SPDX-License-Identifier: Apache-2.0
// ResponseEncoder: writes one generated response in the format of one API, as a whole body or as
// server-sent events. Each generating route has one. The exchange (server/api/exchange.h) passes
// it the response's events and sends its output.
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/response_stream.h"
#include "kernels/base/status.h"

namespace diffserve {

class ResponseEncoder {
 public:
  virtual ~ResponseEncoder() = default;

  // Takes the next event. REQUIRES: written().
  virtual void Take(ResponseEvent event) = 0;
  // Appends output until `out` has `enough` bytes or a little more: a stream's frames, or the body
  // once it is done with an OK status. True if nothing is left.
  virtual bool Write(size_t enough, std::string* out) = 0;
  // True if all events taken so far are written.
  virtual bool written() const = 0;
  // True if part of a stream was returned: a later error can no longer become an HTTP status.
  virtual bool started() const = 0;
  virtual bool done() const = 0;
  virtual const Status& status() const = 0;       // of the end
  virtual int64_t completion_tokens() const = 0;  // so far
};

}  // namespace diffserve
