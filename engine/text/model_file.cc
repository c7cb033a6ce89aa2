// SPDX-License-Identifier: Apache-2.0
#include "engine/text/model_file.h"

#include <filesystem>

#include "models/regular_file.h"

namespace diffserve {

Result<std::string> ReadModelFile(const std::string& model_dir, std::string_view name,
                                  size_t max_bytes) {
  const std::string path = (std::filesystem::path(model_dir) / name).string();
  return name.ends_with(".json") ? ReadJsonFile(path, max_bytes) : ReadRegularFile(path, max_bytes);
}

Result<std::string> ReadOptionalModelFile(const std::string& model_dir, std::string_view name,
                                          size_t max_bytes) {
  Result<std::string> text = ReadModelFile(model_dir, name, max_bytes);
  if (!text.ok() && text.status().code() == StatusCode::kNotFound) return std::string();
  if (text.ok() && text.value().empty())
    return InvalidArgument(model_dir + "/" + std::string(name) + ": is empty");
  return text;
}

}  // namespace diffserve
