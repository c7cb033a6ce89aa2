// SPDX-License-Identifier: Apache-2.0
// The member `models` of /v1/models, in the form in which Codex reads a provider's models. Without
// an entry Codex assumes a context of its own vendor's size, and warns.
// Thread safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/json/json_writer.h"

namespace diffserve {

struct CodexModel {
  std::string name;
  std::optional<int> max_model_len;  // nullopt: not known before the model is loaded
};

void AddCodexModels(const std::vector<CodexModel>& models, JsonWriter* json);

}  // namespace diffserve
