// SPDX-License-Identifier: Apache-2.0
#include "server/app/environment.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>
#include <vector>

#include "server/api/door/nearest_name.h"

namespace diffserve {
namespace {

constexpr std::string_view kPrefix = "DIFFSERVE_";

// A value as ApplyFlag reads it.
std::string FlagValue(const FlagSpec& flag, std::string_view text) {
  if (flag.Is<bool>() && text == "1") return "true";
  if (flag.Is<bool>() && text == "0") return "false";
  std::string value;
  if (!flag.Is<std::vector<std::string>>()) return value = text;
  for (size_t begin = 0; (begin = text.find_first_not_of(" \t\n", begin)) != text.npos;) {
    const size_t end = std::min(text.find_first_of(" \t\n", begin), text.size());
    if (!value.empty()) value += kTextSeparator;
    value += text.substr(begin, end - begin);
    begin = end;
  }
  return value;
}

// The flag's variable that `name` probably meant.
std::optional<std::string> NearestVariable(std::string_view name, unsigned command) {
  std::vector<std::string> variables = {"CONFIG"};
  for (const FlagSpec& flag : FlagTable()) {
    if ((flag.commands & command) != 0)
      variables.push_back(VariableOf(flag.name).substr(kPrefix.size()));
  }
  const std::vector<std::string_view> names(variables.begin(), variables.end());
  const std::optional<std::string_view> nearest = NearestName(name.substr(kPrefix.size()), names);
  if (!nearest) return std::nullopt;
  return std::string(kPrefix) + std::string(*nearest);
}

}  // namespace

std::string VariableOf(std::string_view flag) {
  std::string name(kPrefix);
  for (const char c : flag.substr(2))
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

std::string_view ValueOfVariable(std::span<const std::string> environment, std::string_view name) {
  for (const std::string_view variable : environment) {
    if (variable.starts_with(name) && variable.substr(name.size()).starts_with('='))
      return variable.substr(name.size() + 1);
  }
  return {};
}

Status ApplyEnvironment(std::span<const std::string> environment, unsigned command,
                        Options& options, std::vector<Assignment>& applied) {
  for (const std::string_view variable : environment) {
    const std::string name(variable.substr(0, variable.find('=')));
    if (!name.starts_with(kPrefix) || variable.size() <= name.size() + 1) continue;
    const std::string_view text = variable.substr(name.size() + 1);
    bool is_known = name == VariableOf("--config");
    for (const FlagSpec& flag : FlagTable()) {
      if (name != VariableOf(flag.name)) continue;
      is_known = true;
      const bool is_kubernetes = flag.Is<int>() && text.find("://") != text.npos;
      if ((flag.commands & command) == 0 || is_kubernetes) continue;
      std::string value = FlagValue(flag, text);
      const Status status = ApplyFlag(flag, value, options);
      if (!status.ok())
        return InvalidArgument(name + ": " + status.message(), std::string(flag.name));
      applied.push_back({&flag, std::move(value)});
    }
    if (is_known) continue;
    if (const std::optional<std::string> nearest = NearestVariable(name, command))
      options.warnings.push_back(name + " sets no flag: did you mean " + *nearest + "?");
  }
  return {};
}

}  // namespace diffserve
