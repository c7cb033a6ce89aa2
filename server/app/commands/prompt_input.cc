// SPDX-License-Identifier: Apache-2.0
#include "server/app/commands/prompt_input.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "kernels/base/refusal.h"
#include "models/regular_file.h"

namespace diffserve {
namespace {

constexpr size_t kMaxTokensFileBytes = size_t{256} << 20;

}  // namespace

Result<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& model_dir, bool is_needed) {
  std::error_code error;
  if (!is_needed && !std::filesystem::exists(model_dir + "/tokenizer.json", error))
    return std::unique_ptr<Tokenizer>();
  return Tokenizer::Load(model_dir);
}

Status CheckIds(const std::vector<int32_t>& ids, int vocab_size, const std::string& param) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    return NotAllowed(param + ": token " + std::to_string(i) + " is " + std::to_string(ids[i]),
                      RangeText(0, vocab_size - 1), param);
  }
  return {};
}

Result<std::vector<int32_t>> PromptTokenIds(const PromptOptions& prompt, int vocab_size) {
  std::string text = prompt.tokens;
  if (text.starts_with('@')) {
    Result<std::string> read = ReadRegularFile(text.substr(1), kMaxTokensFileBytes);
    if (!read.ok())
      return InvalidArgument(std::string(kTokensFlag) + ": " + read.status().message(),
                             kTokensFlag);
    text = std::move(read).value();
  }
  Result<std::vector<int32_t>> ids = ParseTokenIds(text, kTokensFlag);
  if (!ids.ok()) return ids;
  DS_RETURN_IF_ERROR(CheckIds(ids.value(), vocab_size, kTokensFlag));
  return ids;
}

}  // namespace diffserve
