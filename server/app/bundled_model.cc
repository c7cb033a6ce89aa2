// SPDX-License-Identifier: Apache-2.0
#include "server/app/bundled_model.h"

#include <filesystem>
#include <system_error>

namespace diffserve {

namespace fs = std::filesystem;

std::string WithBundledModel(const std::string& model_dir, const std::string& program) {
  std::error_code error;
  if (model_dir != "demo" || fs::exists(model_dir, error)) return model_dir;
  const fs::path real_program = fs::canonical(program, error);
  const fs::path bundled = real_program.parent_path().parent_path() / "share/diffserve/models/demo";
  return fs::is_directory(bundled, error) ? bundled.string() : model_dir;
}

}  // namespace diffserve
