// SPDX-License-Identifier: Apache-2.0
#include "server/http/session/read_deadline.h"

namespace diffserve {
namespace {

using Clock = std::chrono::steady_clock;

// `begin`, which is now unless it was earlier.
Clock::time_point Begun(Clock::time_point* begin) {
  if (*begin == Clock::time_point()) *begin = Clock::now();
  return *begin;
}

}  // namespace

ReadDeadline::Part ReadDeadline::PartOf(const HttpReader& reader) {
  if (reader.state() == HttpReader::State::kBody) return Part::kBody;
  return reader.idle() ? Part::kIdle : Part::kHead;
}

ReadDeadline::TimePoint ReadDeadline::Of(const HttpReader& reader, const HttpServerOptions& options,
                                         bool is_first) {
  switch (PartOf(reader)) {
    case Part::kBody: {
      const auto earned = std::chrono::milliseconds(1000 * reader.body_bytes_received() /
                                                    options.body_bytes_per_second);
      return Begun(&body_begin_) + options.body_grace + earned;
    }
    case Part::kHead:
      return Begun(&head_begin_) + options.head_timeout;
    case Part::kIdle:
      break;
  }
  head_begin_ = {};
  return Clock::now() + (is_first ? options.head_timeout : options.idle_timeout);
}

}  // namespace diffserve
