// TokenFiles: the files of a model directory that say which special tokens it has. The tokenizer
// and the chat template read the same ones.
#pragma once

#include <string>

#include "kernels/base/status.h"

namespace diffserve_ffi {
struct FfiTokenFiles;
}

namespace diffserve {

// Their texts, empty where there is no such file.
struct TokenFiles {
  std::string tokenizer;  // tokenizer.json
  std::string tokenizer_config;
  std::string special_tokens_map;
  std::string added_tokens;
  std::string model_config;  // config.json

  // Error: one line with the file and what is wrong.
  static Result<TokenFiles> Read(const std::string& model_dir);

  // Valid as long as this.
  diffserve_ffi::FfiTokenFiles ffi() const;
};

}  // namespace diffserve
