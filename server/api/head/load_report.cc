// SPDX-License-Identifier: Apache-2.0
#include "server/api/head/load_report.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdint>
#include <utility>

#include "kernels/process/check.h"
#include "server/json/json_writer.h"

namespace diffserve {
namespace {

using NamedMetrics = std::array<std::pair<std::string_view, double>, 2>;

// The shortest digits that are read back as the same number.
std::string Number(double value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

std::string TextReport(const NamedMetrics& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) {
    text += (text.empty() ? "TEXT named_metrics." : ", named_metrics.") + std::string(name) + "=" +
            Number(value);
  }
  return text;
}

std::string JsonReport(const NamedMetrics& metrics) {
  std::string report = "JSON ";
  JsonWriter json(&report, /*spaced=*/true);
  json.Begin('{').Key("named_metrics").Begin('{');
  for (const auto& [name, value] : metrics) json.Key(name).Json(Number(value));
  json.End('}').End('}');
  return report;
}

// `map<string, double> named_metrics = 8` in protobuf's encoding: for each entry a message with key
// = 1 and value = 2.
std::string Binary(const NamedMetrics& metrics) {
  std::string bytes;
  for (const auto& [name, value] : metrics) {
    std::string entry = "\x0a";  // field 1: a length and that number of bytes
    entry += static_cast<char>(name.size());
    entry += name;
    entry += '\x11';  // field 2, 8 bytes, the lowest first
    uint64_t bits = std::bit_cast<uint64_t>(value);
    for (int i = 0; i < 8; ++i, bits >>= 8) entry += static_cast<char>(bits & 0xFF);
    DS_CHECK(entry.size() < 128, "lengths of one byte");
    bytes += '\x42';  // field 8: a length and that number of bytes
    bytes += static_cast<char>(entry.size());
    bytes += entry;
  }
  return bytes;
}

}  // namespace

LoadFormat LoadFormatOf(std::string_view word) {
  constexpr std::pair<std::string_view, LoadFormat> kWords[] = {
      {"text", LoadFormat::kText}, {"json", LoadFormat::kJson}, {"bin", LoadFormat::kBinary}};
  const auto same = [](char c, char lower) {
    return c == lower || (c >= 'A' && c <= 'Z' && c + ('a' - 'A') == lower);
  };
  for (const auto& [known, format] : kWords) {
    if (std::equal(word.begin(), word.end(), known.begin(), known.end(), same)) return format;
  }
  return LoadFormat::kNone;
}

std::string LoadReport(const EngineStats& stats, LoadFormat format) {
  const NamedMetrics metrics = {{{"kv_cache_usage_perc", stats.kv_cache_usage()},
                                 {"num_requests_waiting", static_cast<double>(stats.waiting)}}};
  DS_CHECK(format != LoadFormat::kNone, "a format was asked for");
  if (format == LoadFormat::kBinary) return Binary(metrics);
  return format == LoadFormat::kText ? TextReport(metrics) : JsonReport(metrics);
}

}  // namespace diffserve
