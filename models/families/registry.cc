// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cctype>

#include "models/families/family.h"

namespace diffserve {
namespace {

constexpr std::array<const Family*, 6> kFamilies = {
    &kDiffLlamaFamily, &kDiffTransformerFamily, &kDiffTransformerV2Family,
    &kLlamaFamily,     &kMotifFamily,           &kPhi4FlashFamily};

// Differential-attention models that need more than a family file: the missing parts.
struct UnservedType {
  const char* model_type;
  const char* reason;
};
constexpr UnservedType kUnservedTypes[] = {
    {"diff_llama",
     "a model of remote code, whose layout differs from that of diffllama, and cannot be served"},
};

bool SameLetters(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, {}, [](unsigned char c) { return std::tolower(c); },
      [](unsigned char c) { return std::tolower(c); });
}

std::string ServedModelTypes() {
  std::string types;
  for (const Family* family : kFamilies)
    types += (types.empty() ? "" : ", ") + std::string(family->model_type);
  return types;
}

}  // namespace

Result<const Family*> FindFamily(ConfigReader& json) {
  const std::string model_type = json.String("model_type", std::nullopt);
  const std::vector<std::string> architectures = json.Strings("architectures");
  DS_RETURN_IF_ERROR(json.status());
  for (const Family* family : kFamilies) {
    if (!SameLetters(family->model_type, model_type)) continue;
    if (!architectures.empty() &&
        std::ranges::find(architectures, family->architecture) == architectures.end()) {
      json.Refuse("architectures", std::string(family->architecture));
      return json.status();
    }
    return family;
  }
  for (const UnservedType& unserved : kUnservedTypes) {
    if (model_type == unserved.model_type)
      json.Fail("model_type", "is \"" + model_type + "\": " + unserved.reason);
  }
  json.Refuse(
      "model_type",
      ServedModelTypes() +
          (json.Has("auto_map") ? " (code inside a checkpoint, auto_map, is never run)" : ""));
  return json.status();
}

}  // namespace diffserve
