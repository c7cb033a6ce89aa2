#include "engine/text/model_file.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace diffserve {

Result<std::string> ReadModelFile(const std::string& model_dir, std::string_view name,
                                  size_t max_bytes) {
  const std::filesystem::path path = std::filesystem::path(model_dir) / name;
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  if (kind == std::filesystem::file_type::not_found) {
    return Status(StatusCode::kNotFound, path.string() + ": no such file");
  }
  // A pipe or a device would make the read wait for ever.
  if (kind != std::filesystem::file_type::regular)
    return InvalidArgument(path.string() + ": not a regular file");
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return InvalidArgument(path.string() + ": " + error.message());
  if (size > max_bytes) {
    return InvalidArgument(path.string() + ": " + std::to_string(size) + " bytes, at most " +
                           std::to_string(max_bytes) + " are allowed");
  }
  std::string text(size, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(text.data(), static_cast<std::streamsize>(size));
  if (!file || static_cast<uintmax_t>(file.gcount()) != size)
    return InvalidArgument(path.string() + ": cannot be read");
  return text;
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
