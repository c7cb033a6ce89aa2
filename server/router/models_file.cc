// SPDX-License-Identifier: Apache-2.0
#include "server/router/models_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/refusal.h"

namespace diffserve {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int kMaxFileDepth = 4;
constexpr size_t kMaxModels = 256;
constexpr size_t kMaxNameBytes = 256;

// The parent has one of each for all models, so a model cannot set them.
constexpr std::string_view kFlagsOfTheParent[] = {"models",
                                                  "idle-timeout",
                                                  "max-loaded",
                                                  "models-memory",
                                                  "load-wait",
                                                  "host",
                                                  "port",
                                                  "grpc-port",
                                                  "health-port",
                                                  "served-model-name",
                                                  "api-key-file",
                                                  "cors-origin",
                                                  "ui",
                                                  "drain-timeout",
                                                  "unix-socket",
                                                  "grpc",
                                                  "stop-with-stdin",
                                                  "log-format",
                                                  "config"};

constexpr std::string_view kMembers = "model, flags, aliases, pinned";

Status Wrong(const std::string& found, std::string_view allowed) {
  return NotAllowed(found, allowed, "--models");
}

std::string IsA(const OrderedJson& value) { return std::string(" is a JSON ") + value.type_name(); }

bool IsName(const std::string& name) {
  const auto is_plain = [](char c) { return c > ' ' && c < 127 && c != '"' && c != '\\'; };
  return !name.empty() && name.size() <= kMaxNameBytes && std::ranges::all_of(name, is_plain);
}

Status CheckName(const std::string& path, const std::string& name) {
  if (IsName(name)) return {};
  return Wrong(path + " has the name " + QuotedText(name),
               "1 to 256 printable ASCII characters without spaces, quotes and backslashes");
}

// A flag's value as on a command line; empty: the value is of no such type.
std::vector<std::string> FlagArguments(const std::string& flag, const OrderedJson& value) {
  if (value.is_boolean()) return {value.get<bool>() ? "--" + flag : "--no-" + flag};
  if (value.is_string()) return {"--" + flag + "=" + value.get<std::string>()};
  if (value.is_number()) return {"--" + flag + "=" + value.dump()};
  if (!value.is_array() || value.empty()) return {};
  std::vector<std::string> texts;
  std::string numbers;
  for (const OrderedJson& entry : value) {
    if (entry.is_string()) texts.push_back("--" + flag + "=" + entry.get<std::string>());
    if (entry.is_number()) numbers += (numbers.empty() ? "" : ",") + entry.dump();
  }
  if (texts.size() == value.size()) return texts;
  if (texts.empty() && !numbers.empty()) return {"--" + flag + "=" + numbers};
  return {};
}

Status ReadFlags(const std::string& path, const OrderedJson& flags, RoutedModel* model) {
  if (!flags.is_object()) return Wrong(path + IsA(flags), "an object of flag names and values");
  for (const auto& [key, value] : flags.items()) {
    std::string flag = key;
    std::ranges::replace(flag, '_', '-');
    if (std::ranges::find(kFlagsOfTheParent, flag) != std::end(kFlagsOfTheParent)) {
      return Wrong(path + " has --" + flag, "on the command line only, for all models together");
    }
    const std::vector<std::string> arguments = FlagArguments(flag, value);
    if (arguments.empty()) {
      return Wrong(path + "." + key + IsA(value),
                   "a string, a number, a boolean, a list of strings or numbers");
    }
    model->flags.insert(model->flags.end(), arguments.begin(), arguments.end());
  }
  return {};
}

Status ReadAliases(const std::string& path, const OrderedJson& aliases, RoutedModel* model) {
  if (!aliases.is_array()) return Wrong(path + IsA(aliases), "a list of names");
  for (const OrderedJson& alias : aliases) {
    if (!alias.is_string())
      return Wrong(path + " has an entry that" + IsA(alias), "a list of names");
    model->aliases.push_back(alias.get<std::string>());
    DS_RETURN_IF_ERROR(CheckName(path, model->aliases.back()));
  }
  return {};
}

Status ReadMember(const std::string& path, const std::string& key, const OrderedJson& value,
                  RoutedModel* model) {
  if (key == "model") {
    if (!value.is_string() || value.get_ref<const std::string&>().empty())
      return Wrong(path + IsA(value), "the path of a model directory");
    model->model = value.get<std::string>();
  } else if (key == "flags") {
    return ReadFlags(path, value, model);
  } else if (key == "aliases") {
    return ReadAliases(path, value, model);
  } else if (key == "pinned") {
    if (!value.is_boolean()) return Wrong(path + IsA(value), "true, false");
    model->pinned = value.get<bool>();
  } else if (key == "adapters") {
    return Wrong(path + " is set", "only in a build that serves adapters");
  } else {
    return Wrong(path + " is not known", kMembers);
  }
  return {};
}

Result<RoutedModel> ReadModel(const std::string& name, const OrderedJson& members) {
  DS_RETURN_IF_ERROR(CheckName("model \"" + name + "\"", name));
  if (!members.is_object())
    return Wrong(name + IsA(members), "an object with " + std::string(kMembers));
  RoutedModel model = {.name = name, .model = ""};
  for (const auto& [key, value] : members.items())
    DS_RETURN_IF_ERROR(ReadMember(name + "." + key, key, value, &model));
  if (model.model.empty()) return Wrong(name + ".model is missing", "the model's directory");
  return model;
}

}  // namespace

Result<RoutedModels> RoutedModels::Parse(std::string_view json) {
  bool too_deep = false;
  const auto limit_depth = [&](int depth, OrderedJson::parse_event_t, OrderedJson&) {
    return !(too_deep |= depth > kMaxFileDepth);
  };
  const OrderedJson root = OrderedJson::parse(json, limit_depth, /*allow_exceptions=*/false);
  if (too_deep || !root.is_object() || root.empty() || root.size() > kMaxModels)
    return Wrong("the file is another value", "one JSON object of 1 to 256 models by name");
  RoutedModels models;
  for (const auto& [name, members] : root.items()) {
    Result<RoutedModel> model = ReadModel(name, members);
    if (!model.ok()) return model.status();
    std::vector<std::string> names = {model->name};
    names.insert(names.end(), model->aliases.begin(), model->aliases.end());
    for (const std::string& taken : names) {
      if (!models.places_.emplace(taken, models.models_.size()).second)
        return Wrong(name + " has the name " + QuotedText(taken) + " of another",
                     "names that are used once");
    }
    models.models_.push_back(*std::move(model));
  }
  return models;
}

std::vector<std::string> RoutedModels::Names() const {
  std::vector<std::string> names;
  for (const RoutedModel& model : models_) names.push_back(model.name);
  return names;
}

std::optional<size_t> RoutedModels::Find(std::string_view name_or_alias) const {
  if (name_or_alias.empty()) return 0;
  const auto found = places_.find(std::string(name_or_alias));
  return found == places_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace diffserve
