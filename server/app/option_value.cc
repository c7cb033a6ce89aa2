// SPDX-License-Identifier: Apache-2.0
// Reads, checks and prints the value of a flag.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <ranges>

#include "kernels/base/refusal.h"
#include "server/app/option_table.h"

namespace diffserve {
namespace {

constexpr size_t kMaxListed = 64;  // values of a list

std::string NumberText(double value) {
  if (value == kAboveZero) return "above 0";
  char text[40];
  std::snprintf(text, sizeof(text), value == std::floor(value) ? "%.0f" : "%g", value);
  return text;
}

// Writes the value to `out`; returns whether it is valid.
template <typename T>
bool Store(const FlagSpec& flag, std::string_view text, T& out) {
  if constexpr (std::is_same_v<T, bool>) {
    out = text == "true";
    return out || text == "false";
  } else if constexpr (std::is_same_v<T, std::string>) {
    out = text;
    return !text.empty();
  } else if constexpr (std::is_same_v<T, MemorySize>) {
    const std::optional<MemorySize> size = ParseMemorySize(text);
    out = size.value_or(MemorySize());
    const bool has_range = flag.max > 0;
    const double bytes = static_cast<double>(out.bytes);
    return size && (size->share == 0 || flag.is_share_allowed) &&
           (!has_range || (bytes >= flag.min && bytes <= flag.max));
  } else if constexpr (std::is_arithmetic_v<T>) {
    // A float's range is checked in double, so that the float nearest to 0.1 is not below 0.1.
    std::conditional_t<std::is_same_v<T, float>, double, T> number{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size()) return false;
    out = static_cast<T>(number);
    if constexpr (std::is_integral_v<T>) {
      if (number % static_cast<T>(flag.multiple_of) != 0) return false;
    }
    const double wide = static_cast<double>(number);
    return std::is_unsigned_v<T> || (wide >= flag.min && wide <= flag.max);  // a NaN fails too
  } else {                                                                   // a list
    constexpr bool kIsOfTexts = std::is_same_v<T, std::vector<std::string>>;
    out.clear();
    for (const auto part : std::views::split(text, kIsOfTexts ? kTextSeparator : ',')) {
      typename T::value_type item;
      if (!Store(flag, std::string_view(part.begin(), part.end()), item)) return false;
      if (kIsOfTexts && std::ranges::find(out, item) != out.end()) continue;
      out.push_back(std::move(item));
    }
    return !out.empty() && out.size() <= kMaxListed;
  }
}

// A value as the help text shows it.
template <typename T>
std::string TextOf(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "on" : "off";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return value;
  } else if constexpr (std::is_same_v<T, MemorySize>) {
    return value.text;
  } else if constexpr (std::is_arithmetic_v<T>) {
    return NumberText(static_cast<double>(value));
  } else {
    std::string text;
    for (const auto& item : value) text += (text.empty() ? "" : ",") + TextOf(item);
    return text;
  }
}

// "cuda" of "cuda:1", if that choice may have a number; otherwise the value itself.
std::string_view ChoiceOf(const FlagSpec& flag, std::string_view value) {
  constexpr size_t kMaxDigits = 3;
  const size_t colon = value.find(':');
  if (colon == value.npos ||
      std::ranges::find(flag.numbered, value.substr(0, colon)) == flag.numbered.end())
    return value;
  const std::string_view number = value.substr(colon + 1);
  const bool is_number = !number.empty() && number.size() <= kMaxDigits &&
                         number.find_first_not_of("0123456789") == number.npos;
  return is_number ? value.substr(0, colon) : value;
}

}  // namespace

Status ApplyFlag(const FlagSpec& flag, std::string_view value, Options& options) {
  const std::string name(flag.name);
  const std::string_view choice = ChoiceOf(flag, value);
  if (std::ranges::find(flag.refused, choice) != flag.refused.end()) {
    return NotAllowed(name + " " + std::string(value) + ": " + std::string(flag.refusal),
                      AllowedText(flag), name);
  }
  const bool is_choice = std::ranges::find(flag.allowed, choice) != flag.allowed.end();
  const bool stored = (flag.allowed.empty() || is_choice) &&
                      std::visit(
                          [&](auto target) {
                            if constexpr (std::is_same_v<decltype(target), FlagSpec::Setter>)
                              return target(options, value), true;
                            else
                              return Store(flag, value, target(options));
                          },
                          flag.target);
  if (stored) return {};
  return NotOneOf(name, value, AllowedText(flag));
}

std::string AllowedText(const FlagSpec& flag) {
  if (!flag.allowed.empty()) {
    std::string text = Joined(flag.allowed);
    for (const std::string_view choice : flag.numbered) {
      if (std::ranges::find(flag.allowed, choice) != flag.allowed.end())
        text += ", " + std::string(choice) + ":N";
    }
    return text;
  }
  if (flag.Is<bool>()) return "true, false";
  if (flag.Is<uint64_t>()) return "0 to 18446744073709551615";
  if (flag.Is<std::string>()) return "text, not empty";
  if (flag.Is<std::vector<std::string>>())
    return "1 to " + std::to_string(kMaxListed) + " texts, none empty";
  if (flag.Is<MemorySize>()) {
    if (flag.is_share_allowed)
      return "bytes with suffix (2G, 512MiB) or a share of free memory (0.3)";
    const std::string form = "bytes with suffix (5G, 512MiB)";
    if (flag.max == 0) return form;
    return form + ", " + NumberText(flag.min) + " to " + NumberText(flag.max);
  }
  const std::string range =
      NumberText(flag.min) + " to " + NumberText(flag.max) +
      (flag.multiple_of > 1 ? ", a multiple of " + std::to_string(flag.multiple_of) : "");
  return flag.Is<std::vector<int>>() ? "numbers " + range + " separated by commas" : range;
}

std::string DefaultText(const FlagSpec& flag) {
  if (!flag.default_text.empty()) return std::string(flag.default_text);
  Options defaults;
  return std::visit(
      [&](auto target) {
        if constexpr (std::is_same_v<decltype(target), FlagSpec::Setter>)
          return std::string();
        else
          return TextOf(target(defaults));
      },
      flag.target);
}

std::string CommandsText(unsigned commands) {
  std::vector<std::string_view> names;
  for (size_t i = 0; i < CommandTable().size(); ++i) {
    if ((commands & (1u << i)) != 0) names.push_back(CommandTable()[i].name);
  }
  return Joined(names);
}

std::vector<const FlagSpec*> ArgumentsOf(unsigned command) {
  std::vector<const FlagSpec*> arguments;
  for (const FlagSpec& argument : ArgumentTable()) {
    if ((argument.commands & command) != 0) arguments.push_back(&argument);
  }
  return arguments;
}

std::string ArgumentsText(unsigned command) {
  std::string text;
  for (const FlagSpec* argument : ArgumentsOf(command))
    text += " " + std::string(argument->value_name);
  return text;
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
