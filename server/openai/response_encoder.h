// ResponseEncoder: one generated response in the form of one API, as a whole body or as
// server-sent events. Each generating route has one; the exchange (server/openai/exchange.h) feeds
// it the response's events and sends what it writes.
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
  // Appends what there is to write until `out` has `enough` bytes or a little more: a stream's
  // frames, or the body once it is done with an ok status. True if nothing is left.
  virtual bool Write(size_t enough, std::string* out) = 0;
  // Nothing is left to write of what was taken.
  virtual bool written() const = 0;
  // Something of a stream has been answered: a later error cannot become an HTTP status any more.
  virtual bool started() const = 0;
  virtual bool done() const = 0;
  virtual const Status& status() const = 0;       // of the end
  virtual int64_t completion_tokens() const = 0;  // so far
};

}  // namespace diffserve
