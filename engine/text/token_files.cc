// SPDX-License-Identifier: Apache-2.0
#include "engine/text/token_files.h"

#include <string_view>

#include "engine/text/bytes_ffi.h"
#include "engine/text/model_file.h"

namespace diffserve {
namespace {

constexpr size_t kMaxFileBytes = size_t{16} << 20;
// The largest vocabularies in use (256k tokens with merges) take 35 MB.
constexpr size_t kMaxTokenizerBytes = size_t{256} << 20;

}  // namespace

Result<TokenFiles> TokenFiles::Read(const std::string& model_dir) {
  TokenFiles files;
  struct Place {
    const char* name;
    std::string& text;
    size_t max_bytes = kMaxFileBytes;
  };
  for (const Place& place : {Place{"tokenizer.json", files.tokenizer, kMaxTokenizerBytes},
                             {"tokenizer_config.json", files.tokenizer_config},
                             {"special_tokens_map.json", files.special_tokens_map},
                             {"added_tokens.json", files.added_tokens},
                             {"config.json", files.model_config}}) {
    Result<std::string> text = ReadOptionalModelFile(model_dir, place.name, place.max_bytes);
    if (!text.ok()) return text.status();
    place.text = std::move(text).value();
  }
  return files;
}

diffserve_ffi::FfiTokenFiles TokenFiles::ffi() const {
  return {Borrow(tokenizer), Borrow(tokenizer_config), Borrow(special_tokens_map),
          Borrow(added_tokens), Borrow(model_config)};
}

}  // namespace diffserve
