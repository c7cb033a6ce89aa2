#include <algorithm>
#include <array>

#include "models/families/family.h"

namespace diffserve {
namespace {

constexpr std::array<const Family*, 2> kFamilies = {&kDiffLlamaFamily, &kLlamaFamily};

std::string ServedModelTypes() {
  std::string types;
  for (const Family* family : kFamilies) types += (types.empty() ? "" : ", ") + std::string(family->model_type);
  return types;
}

}  // namespace

Result<const Family*> FindFamily(ConfigReader& json) {
  const std::string model_type = json.String("model_type", std::nullopt);
  const std::vector<std::string> architectures = json.Strings("architectures");
  DS_RETURN_IF_ERROR(json.status());
  for (const Family* family : kFamilies) {
    if (family->model_type != model_type) continue;
    if (!architectures.empty() && std::ranges::find(architectures, family->architecture) == architectures.end()) {
      json.Refuse("architectures", std::string(family->architecture));
      return json.status();
    }
    return family;
  }
  json.Refuse("model_type", "one of those served: " + ServedModelTypes() +
                                (json.Has("auto_map") ? " (code inside a checkpoint, auto_map, is never run)" : ""));
  return json.status();
}

}  // namespace diffserve
