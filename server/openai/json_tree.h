// JsonDocument: the tree of a request body, and of some values how they were written. Private to
// the files of JsonFields: it shows the JSON library. Thread safety: immutable once parsed.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>

#include "kernels/base/status.h"
#include "server/openai/json.h"

namespace diffserve {

struct JsonDocument {
  // The value as JSON text, with its parts as they were written where that is kept.
  std::string TextOf(const nlohmann::json& value) const;

  nlohmann::json root;
  // Of schemas, whose order counts, and of numbers that the library would write otherwise. An
  // object's member stays where it is when the tree is moved; no other value is here.
  std::unordered_map<const nlohmann::json*, std::string> texts;
};

Result<std::shared_ptr<const JsonDocument>> ParseJsonDocument(std::string_view body,
                                                              const JsonLimits& limits);

}  // namespace diffserve
