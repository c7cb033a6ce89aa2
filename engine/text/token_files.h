// SPDX-License-Identifier: Apache-2.0
// TokenFiles: the files of a model directory that define its special tokens. The tokenizer and the
// chat template read the same files.
#pragma once

#include <string>

#include "kernels/base/status.h"

namespace diffserve_ffi {
struct FfiTokenFiles;
}

namespace diffserve {

// The text of each file; empty if there is no such file.
struct TokenFiles {
  std::string tokenizer;  // tokenizer.json
  std::string tokenizer_config;
  std::string special_tokens_map;
  std::string added_tokens;
  std::string model_config;  // config.json

  // Error: one line with the file and the reason.
  static Result<TokenFiles> Read(const std::string& model_dir);

  // A view; valid as long as this object.
  diffserve_ffi::FfiTokenFiles ffi() const;
};

}  // namespace diffserve
