// SPDX-License-Identifier: Apache-2.0
// Readers of single protobuf fields that several services have. Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/refusal.h"
#include "server/json/json_writer.h"

namespace diffserve {

inline Status ToInt(uint32_t value, const char* field, int* out) {
  constexpr uint32_t kMax = std::numeric_limits<int>::max();
  if (value > kMax) return OutOfRange(field, value, 0, kMax);
  *out = static_cast<int>(value);
  return {};
}

// OK, or an id beyond those that a vocabulary can have.
inline Status ToId(uint32_t id, const char* field, int32_t* out) {
  if (!std::in_range<int32_t>(id)) {
    return NotAllowed(std::string(field) + " has the token id " + std::to_string(id),
                      RangeText(0, std::numeric_limits<int32_t>::max()), field);
  }
  *out = static_cast<int32_t>(id);
  return {};
}

template <typename Ids>
Status ToIds(const Ids& ids, const char* field, std::vector<int32_t>* out) {
  out->reserve(static_cast<size_t>(ids.size()));
  for (const uint32_t id : ids) DS_RETURN_IF_ERROR(ToId(id, field, &out->emplace_back()));
  return {};
}

// A JSON list of strings.
template <typename Texts>
std::string JsonListOf(const Texts& texts) {
  std::string list;
  JsonWriter json(&list);
  json.Begin('[');
  for (const std::string& text : texts) json.Value(text);
  json.End(']');
  return list;
}

}  // namespace diffserve
