// SPDX-License-Identifier: Apache-2.0
// ReadDeadline: by when a connection must have sent what it is sending: the next request, the head
// of one, or its body at a minimum rate.
// Thread safety: only on its loop's thread.
#pragma once

#include <chrono>

#include "server/http/options.h"
#include "server/http/reader.h"

namespace diffserve {

class ReadDeadline {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  enum class Part { kIdle, kHead, kBody };

  // What the reader waits for. REQUIRES: it is not ready and has refused nothing.
  static Part PartOf(const HttpReader& reader);
  // The deadline of that part, which begins with the first call for it. `is_first`: of the first
  // request of its connection.
  TimePoint Of(const HttpReader& reader, const HttpServerOptions& options, bool is_first);
  // A request is whole.
  void Reset() { head_begin_ = body_begin_ = {}; }

 private:
  TimePoint head_begin_, body_begin_;
};

}  // namespace diffserve
