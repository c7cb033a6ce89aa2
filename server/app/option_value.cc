// SPDX-License-Identifier: Apache-2.0
// Reads, checks and prints the value of a flag.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "server/app/option_table.h"

namespace diffserve {
namespace {

constexpr size_t kMaxTexts = 64;

Status BadValue(const FlagSpec& flag, std::string_view value) {
  const std::string name(flag.name);
  return InvalidArgument(name + " is \"" + std::string(value) + "\", allowed: " + AllowedText(flag),
                         name);
}

template <typename T>
std::optional<T> NumberOf(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

std::string NumberText(double value) {
  if (value == kAboveZero) return "above 0";
  char text[40];
  std::snprintf(text, sizeof(text), value == std::floor(value) ? "%.0f" : "%g", value);
  return text;
}

// One overload per kind of target; each returns whether `value` is valid.
bool Store(const FlagSpec&, std::string_view value, bool& out) {
  if (value != "true" && value != "false") return false;
  out = value == "true";
  return true;
}

template <typename T>
bool StoreNumber(const FlagSpec& flag, std::string_view value, T& out) {
  const std::optional<T> number = NumberOf<T>(value);
  if (!number) return false;
  const double wide = static_cast<double>(*number);
  if (!(wide >= flag.min && wide <= flag.max)) return false;  // a NaN fails too
  if constexpr (std::is_integral_v<T>) {
    if (*number % flag.multiple_of != 0) return false;
  }
  out = *number;
  return true;
}

bool Store(const FlagSpec& flag, std::string_view value, int& out) {
  return StoreNumber(flag, value, out);
}
bool Store(const FlagSpec& flag, std::string_view value, int64_t& out) {
  return StoreNumber(flag, value, out);
}
bool Store(const FlagSpec& flag, std::string_view value, float& out) {
  // The range is checked in double, so that the float nearest to 0.1 is not below 0.1.
  double wide = 0;
  if (!StoreNumber(flag, value, wide)) return false;
  out = static_cast<float>(wide);
  return true;
}

bool Store(const FlagSpec&, std::string_view value, uint64_t& out) {
  const std::optional<uint64_t> number = NumberOf<uint64_t>(value);
  if (number) out = *number;
  return number.has_value();
}

bool Store(const FlagSpec&, std::string_view value, std::string& out) {
  if (!value.empty()) out = value;
  return !value.empty();
}

bool Store(const FlagSpec& flag, std::string_view value, MemorySize& out) {
  Result<MemorySize> size = ParseMemorySize(value);
  if (!size.ok() || (size->share != 0 && !flag.is_share_allowed)) return false;
  out = std::move(size).value();
  return true;
}

bool Store(const FlagSpec&, std::string_view value, std::vector<std::string>& out) {
  std::vector<std::string> texts;
  while (true) {
    const size_t end = value.find(kTextSeparator);
    const std::string text(value.substr(0, end));
    if (text.empty() || texts.size() >= kMaxTexts) return false;
    if (std::ranges::find(texts, text) == texts.end()) texts.push_back(text);
    if (end == std::string_view::npos) break;
    value.remove_prefix(end + 1);
  }
  out = std::move(texts);
  return true;
}

bool Store(const FlagSpec& flag, std::string_view value, std::vector<int>& out) {
  std::vector<int> values;
  while (true) {
    const size_t comma = value.find(',');
    int number = 0;
    if (values.size() >= 64 || !StoreNumber(flag, value.substr(0, comma), number)) return false;
    values.push_back(number);
    if (comma == std::string_view::npos) break;
    value.remove_prefix(comma + 1);
  }
  out = std::move(values);
  return true;
}

// A value as the help text shows it.
std::string TextOf(bool value) { return value ? "on" : "off"; }
std::string TextOf(const std::string& value) { return value; }
std::string TextOf(const MemorySize& value) { return value.text; }
std::string TextOf(const std::vector<std::string>& values) {
  const std::vector<std::string_view> views(values.begin(), values.end());
  return Joined(views);
}
std::string TextOf(const std::vector<int>& values) {
  std::string text;
  for (int value : values) {
    if (!text.empty()) text += ',';
    text += std::to_string(value);
  }
  return text;
}
template <typename T>
  requires std::is_arithmetic_v<T>
std::string TextOf(T value) {
  return NumberText(static_cast<double>(value));
}

}  // namespace

Status ApplyFlag(const FlagSpec& flag, std::string_view value, Options& options) {
  for (std::string_view refused : flag.refused) {
    if (value != refused) continue;
    const std::string name(flag.name);
    return InvalidArgument(name + " " + std::string(value) + ": " + std::string(flag.refusal) +
                               "; allowed: " + AllowedText(flag),
                           name);
  }
  if (!flag.allowed.empty() && std::ranges::find(flag.allowed, value) == flag.allowed.end())
    return BadValue(flag, value);
  const bool stored = std::visit(
      [&](auto target) {
        if constexpr (std::is_same_v<decltype(target), FlagSpec::Setter>) {
          target(options, value);
          return true;
        } else {
          return Store(flag, value, target(options));
        }
      },
      flag.target);
  return stored ? Status() : BadValue(flag, value);
}

std::string AllowedText(const FlagSpec& flag) {
  if (!flag.allowed.empty()) return Joined(flag.allowed);
  if (flag.Is<bool>()) return "true, false";
  if (flag.Is<uint64_t>()) return "0..18446744073709551615";
  if (flag.Is<std::string>()) return "text, not empty";
  if (flag.Is<std::vector<std::string>>())
    return "1.." + std::to_string(kMaxTexts) + " texts, none empty";
  if (flag.Is<MemorySize>()) {
    return flag.is_share_allowed ? "bytes with suffix (2G, 512MiB) or a share of free memory (0.3)"
                                 : "bytes with suffix (5G, 512MiB)";
  }
  const std::string range =
      NumberText(flag.min) + ".." + NumberText(flag.max) +
      (flag.multiple_of > 1 ? ", a multiple of " + std::to_string(flag.multiple_of) : "");
  return flag.Is<std::vector<int>>() ? "numbers " + range + " separated by commas" : range;
}

std::string DefaultText(const FlagSpec& flag) {
  if (!flag.default_text.empty()) return std::string(flag.default_text);
  Options defaults;
  return std::visit(
      [&](auto target) -> std::string {
        if constexpr (std::is_same_v<decltype(target), FlagSpec::Setter>) {
          return "";
        } else {
          return TextOf(target(defaults));
        }
      },
      flag.target);
}

std::string Joined(std::span<const std::string_view> names) {
  std::string text;
  for (std::string_view name : names) {
    if (!text.empty()) text += ", ";
    text += name;
  }
  return text;
}

}  // namespace diffserve
