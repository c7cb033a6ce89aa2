// TraceContext: a request's place in its caller's distributed trace, by the fields `traceparent`
// and `tracestate` of W3C Trace Context. The reply names the same trace with a span of our own, and
// one line in the log ties both to the request id; nothing is exported. Pure functions but for
// LogTraced.
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
  std::string parent_id;  // 16: the caller's span
  std::string span_id;    // 16: ours, made for this request
  unsigned flags = 0;     // those that the standard defines
  std::string state;  // the value of `tracestate`, unread; empty: none, or not fit to be handed on
};

// 16 random hexadecimal digits, not all zero.
std::string RandomHex16();

// nullopt if the value is malformed or forbidden. Of a version above 00 only the fields of version
// 00 are read.
std::optional<TraceContext> ParseTraceparent(std::string_view value);
// In version 00, with our span as parent.
std::string Traceparent(const TraceContext& trace);

// Appends a `tracestate` value to what earlier fields of that name held.
void AppendTraceState(std::string_view value, std::string* state);
// `state` if it is at most 512 printable ASCII characters, else nothing.
std::string UsableTraceState(std::string state);

// What a reply says of the trace: `traceparent` and, if there is one, `tracestate`.
std::vector<std::pair<std::string, std::string>> TraceFields(const TraceContext& trace);

// The line that ends a traced request: what a span would hold.
void LogTraced(const TraceContext& trace, std::string_view route, int status,
               std::string_view request_id, std::chrono::steady_clock::time_point begin);

// Of a request's fields or metadata, names in lower case; nullopt unless there is exactly one valid
// `traceparent`.
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
