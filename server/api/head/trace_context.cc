// SPDX-License-Identifier: Apache-2.0
#include "server/api/head/trace_context.h"

#include <algorithm>

#include "kernels/process/log.h"
#include "server/api/head/random_id.h"

namespace diffserve {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";
constexpr size_t kVersionBytes = 2, kTraceIdBytes = 32, kParentIdBytes = 16, kFlagsBytes = 2;
constexpr size_t kVersion00Bytes = kVersionBytes + 1 + kTraceIdBytes + 1 + kParentIdBytes + 1 +
                                   kFlagsBytes;
constexpr unsigned kSampled = 1, kRandomTraceId = 2;  // flags; the others must be sent as zero
constexpr size_t kMaxStateBytes = 512;

bool IsHex(std::string_view text) {
  return text.find_first_not_of(kDigits) == std::string_view::npos;
}
bool IsId(std::string_view text) {
  return IsHex(text) && text.find_first_not_of('0') != std::string_view::npos;
}

}  // namespace

std::optional<TraceContext> ParseTraceparent(std::string_view value) {
  if (value.size() < kVersion00Bytes) return std::nullopt;
  const auto take = [&value](size_t bytes) {
    const std::string_view field = value.substr(0, bytes);
    value.remove_prefix(bytes);
    return field;
  };
  const std::string_view version = take(kVersionBytes), dash1 = take(1),
                         trace_id = take(kTraceIdBytes), dash2 = take(1),
                         parent_id = take(kParentIdBytes), dash3 = take(1),
                         flags = take(kFlagsBytes);
  if (dash1 != "-" || dash2 != "-" || dash3 != "-") return std::nullopt;
  if (!IsHex(version) || version == "ff" || !IsId(trace_id) || !IsId(parent_id) || !IsHex(flags))
    return std::nullopt;
  if (!value.empty() && (version == "00" || value.front() != '-')) return std::nullopt;
  const unsigned low = static_cast<unsigned>(kDigits.find(flags[1]));
  return TraceContext{std::string(trace_id),
                      std::string(parent_id),
                      RandomHex(16),
                      low & (kSampled | kRandomTraceId),
                      {}};
}

std::string Traceparent(const TraceContext& trace) {
  return "00-" + trace.trace_id + "-" + trace.span_id + "-0" + kDigits[trace.flags & 15];
}

void AppendTraceState(std::string_view value, std::string* state) {
  if (value.empty()) return;
  if (!state->empty()) *state += ',';
  *state += value;
}

std::string UsableTraceState(std::string state) {
  const bool printable = std::all_of(state.begin(), state.end(),
                                     [](char c) { return c >= ' ' && c <= '~'; });
  return printable && state.size() <= kMaxStateBytes ? std::move(state) : std::string();
}

std::vector<std::pair<std::string, std::string>> TraceFields(const TraceContext& trace) {
  std::vector<std::pair<std::string, std::string>> fields = {{"traceparent", Traceparent(trace)}};
  if (!trace.state.empty()) fields.emplace_back("tracestate", trace.state);
  return fields;
}

void LogTraced(const TraceContext& trace, std::string_view route, int status,
               std::string_view request_id, std::chrono::steady_clock::time_point begin) {
  const auto time = std::chrono::steady_clock::now() - begin;
  Log(LogLevel::kInfo, "traced_request",
      {{"route", std::string(route)},
       {"status", std::to_string(status)},
       {"ms", std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(time).count())},
       {"request_id", std::string(request_id)},
       {"trace_id", trace.trace_id},
       {"parent_id", trace.parent_id},
       {"span_id", trace.span_id}});
}

}  // namespace diffserve
