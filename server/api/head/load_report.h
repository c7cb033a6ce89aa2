// SPDX-License-Identifier: Apache-2.0
// The load report in replies to routers that request it: ORCA's `endpoint-load-metrics`, with the
// two named metrics of vLLM's replies. Pure functions of the engine's figures.
#pragma once

#include <string>
#include <string_view>

#include "engine/contract/stats.h"

namespace diffserve {

// The formats; a request names one in any case.
enum class LoadFormat { kNone, kText, kJson, kBinary };  // TEXT, JSON, BIN

inline constexpr char kLoadFormatField[] = "endpoint-load-metrics-format";  // of the request
inline constexpr char kLoadField[] = "endpoint-load-metrics";  // of the reply: TEXT and JSON
inline constexpr char kLoadFieldBinary[] = "endpoint-load-metrics-bin";  // of the reply: BIN

// The named format; kNone for any other word.
LoadFormat LoadFormatOf(std::string_view word);
// The field's value; for kBinary the bytes of a xds.data.orca.v3.OrcaLoadReport. REQUIRES: not
// kNone.
std::string LoadReport(const EngineStats& stats, LoadFormat format);

}  // namespace diffserve
