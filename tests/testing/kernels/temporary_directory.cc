// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/kernels/temporary_directory.h"

#include <stdlib.h>

#include <fstream>
#include <iterator>

namespace diffserve {

void WriteFile(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::string FileBytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TemporaryDirectory::TemporaryDirectory() {
  std::string path = (std::filesystem::temp_directory_path() / "diffserve-test-XXXXXX").string();
  if (mkdtemp(path.data()) != nullptr) path_ = path;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

void TemporaryDirectory::Write(const std::string& name, std::string_view bytes) const {
  std::filesystem::create_directories((path_ / name).parent_path());
  WriteFile(path_ / name, bytes);
}

}  // namespace diffserve
