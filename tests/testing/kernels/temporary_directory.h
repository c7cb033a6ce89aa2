// SPDX-License-Identifier: Apache-2.0
// TemporaryDirectory: a new directory under the system's temporary one, removed at the end.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace diffserve {

void WriteFile(const std::filesystem::path& path, std::string_view bytes);
std::string FileBytes(const std::filesystem::path& path);

class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Creates the folders in `name` if needed.
  void Write(const std::string& name, std::string_view bytes) const;

 private:
  std::filesystem::path path_;
};

}  // namespace diffserve
