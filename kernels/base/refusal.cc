// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/refusal.h"

#include <utility>

namespace diffserve {
namespace {

constexpr size_t kMaxQuotedBytes = 64;

Status OfField(std::string_view field, const std::string& found, std::string_view allowed) {
  return NotAllowed(std::string(field) + found, allowed, std::string(field));
}

}  // namespace

std::string RefusalText(std::string_view found, std::string_view allowed) {
  return std::string(found) + "; allowed: " + std::string(allowed);
}

std::string QuotedText(std::string_view text) {
  const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
  size_t end = text.size();
  if (end > kMaxQuotedBytes) {
    end = kMaxQuotedBytes;
    while (end > 0 && continues(text[end])) --end;
  }
  return "\"" + std::string(text.substr(0, end)) + (end < text.size() ? "...\"" : "\"");
}

std::string RangeText(int64_t low, int64_t high) {
  return std::to_string(low) + " to " + std::to_string(high);
}

Status NotAllowed(std::string_view found, std::string_view allowed, std::string param) {
  return InvalidArgument(RefusalText(found, allowed), std::move(param));
}

Status OutOfRange(std::string_view field, int64_t value, int64_t low, int64_t high) {
  return OfField(field, " is " + std::to_string(value), RangeText(low, high));
}

Status BelowMin(std::string_view field, int64_t value, int64_t min) {
  return OfField(field, " is " + std::to_string(value), "at least " + std::to_string(min));
}

Status NotOneOf(std::string_view field, std::string_view found, std::string_view allowed) {
  return OfField(field, " is " + QuotedText(found), allowed);
}

Status TooMany(std::string_view field, size_t count, std::string_view unit, size_t max) {
  return OfField(field, " has " + std::to_string(count) + " " + std::string(unit),
                 "at most " + std::to_string(max));
}

Status Missing(std::string_view field, std::string_view allowed) {
  if (!allowed.empty()) return OfField(field, " is missing", allowed);
  return InvalidArgument(std::string(field) + " is missing", std::string(field));
}

Status IsEmpty(std::string_view field, std::string_view allowed) {
  return OfField(field, " is empty", allowed);
}

Status OnlyWith(std::string_view field, std::string_view other) {
  return OfField(field, " is set", "only with " + std::string(other));
}

Status NotBoth(std::string_view first, std::string_view second) {
  return NotAllowed(std::string(first) + " and " + std::string(second) + " are set", "one of them",
                    std::string(second));
}

}  // namespace diffserve
