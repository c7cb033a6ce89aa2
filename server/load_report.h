// The load that a reply tells to a router which asks for it: ORCA's `endpoint-load-metrics`, with
// the two named metrics of vLLM's replies. Pure functions of the engine's numbers.
#pragma once

#include <string>
#include <string_view>

#include "engine/stats.h"

namespace diffserve {

// A request asks with one of these words, in any case.
enum class LoadFormat { kNone, kText, kJson, kBinary };  // TEXT, JSON, BIN

inline constexpr char kLoadFormatField[] = "endpoint-load-metrics-format";  // of the request
inline constexpr char kLoadField[] = "endpoint-load-metrics";  // of the reply: TEXT and JSON
inline constexpr char kLoadFieldBinary[] = "endpoint-load-metrics-bin";  // of the reply: BIN

// Share of the KV pages that requests hold, 0 to 1.
double KvCacheUsage(const EngineStats& stats);

// kNone if it is none of the words.
LoadFormat LoadFormatOf(std::string_view word);
// The field's value; for kBinary the bytes of a xds.data.orca.v3.OrcaLoadReport. REQUIRES: not
// kNone.
std::string LoadReport(const EngineStats& stats, LoadFormat format);

}  // namespace diffserve
