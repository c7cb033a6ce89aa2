// SPDX-License-Identifier: Apache-2.0
// TraceContext: a request's position in its caller's distributed trace, from the fields
// `traceparent` and `tracestate` of W3C Trace Context. The reply names the same trace with a span
// of our own, and one log line links both to the request id. Nothing is exported. All functions
// except LogTraced are pure.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace diffserve {

// Ids are lower-case hexadecimal and not all zero.
struct TraceContext {
  std::string trace_id;   // 32 digits
  std::string parent_id;  // 16 digits: the caller's span
  std::string span_id;    // 16 digits: our span for this request
  unsigned flags = 0;     // those that the standard defines
  std::string state;      // the value of `tracestate`, unread; empty: none, or not valid
};

// nullopt if the value is malformed or forbidden. Versions above 00 are read as version 00, and
// their further fields are ignored.
std::optional<TraceContext> ParseTraceparent(std::string_view value);
// In version 00, with our span as parent.
std::string Traceparent(const TraceContext& trace);

// Appends a `tracestate` value to those of earlier fields.
void AppendTraceState(std::string_view value, std::string* state);
// `state` if it is at most 512 printable ASCII characters, else nothing.
std::string UsableTraceState(std::string state);

// A reply's fields for the trace: `traceparent` and, if there is one, `tracestate`.
std::vector<std::pair<std::string, std::string>> TraceFields(const TraceContext& trace);

// Writes the log line at the end of a traced request, with what a span would contain.
void LogTraced(const TraceContext& trace, std::string_view route, int status,
               std::string_view request_id, std::chrono::steady_clock::time_point begin);

// The trace in a request's fields or metadata, names in lower case; nullopt unless there is exactly
// one valid `traceparent`.
template <typename Fields>
std::optional<TraceContext> TraceOf(const Fields& fields) {
  int parents = 0;
  std::string_view parent;
  std::string state;
  for (const auto& [name, value] : fields) {
    const std::string_view name_view(name.data(), name.size()),
        value_view(value.data(), value.size());
    if (name_view == "traceparent") {
      ++parents;
      parent = value_view;
    } else if (name_view == "tracestate") {
      AppendTraceState(value_view, &state);
    }
  }
  if (parents != 1) return std::nullopt;
  std::optional<TraceContext> trace = ParseTraceparent(parent);
  if (trace) trace->state = UsableTraceState(std::move(state));
  return trace;
}

}  // namespace diffserve
