// SPDX-License-Identifier: Apache-2.0
// The file of `serve --models`: a JSON object of names, each with a model and the flags of its
// server. RoutedModels finds a model by the name that a client uses.
// Thread safety: immutable after Parse.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/base/status.h"

namespace diffserve {

struct RoutedModel {
  std::string name;
  std::vector<std::string> aliases = {};
  std::string model;                    // what stands for MODEL_DIR on its command line
  std::vector<std::string> flags = {};  // as on a command line: "--threads", "2"
  bool pinned = false;                  // loaded at the start, and never stopped to make room
};

class RoutedModels {
 public:
  // Error: kInvalidArgument, with the name of the model and what is allowed.
  static Result<RoutedModels> Parse(std::string_view json);

  const std::vector<RoutedModel>& all() const { return models_; }  // in the file's order
  std::vector<std::string> Names() const;                          // without aliases
  // The place of a model; nullopt: unknown. An empty name means the first model.
  std::optional<size_t> Find(std::string_view name_or_alias) const;

 private:
  std::vector<RoutedModel> models_;
  std::unordered_map<std::string, size_t> places_;  // by name and alias
};

}  // namespace diffserve
