// SPDX-License-Identifier: Apache-2.0
// JsonDocument: the tree of a request body, and the original text of some values. Private to the
// files of JsonFields, because it exposes the JSON library. Thread safety: immutable after parsing.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>

#include "kernels/base/status.h"
#include "server/json/json.h"

namespace diffserve {

struct JsonDocument {
  // The value as JSON text; parts whose original text is kept are unchanged.
  std::string TextOf(const nlohmann::json& value) const;

  nlohmann::json root;
  // The text of schemas, whose order counts, and of numbers that the library would write in another
  // way. Keys are members of objects only, because these stay in place when the tree is moved.
  std::unordered_map<const nlohmann::json*, std::string> texts;
};

Result<std::shared_ptr<const JsonDocument>> ParseJsonDocument(std::string_view body,
                                                              const JsonLimits& limits);

}  // namespace diffserve
