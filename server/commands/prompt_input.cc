#include "server/commands/prompt_input.h"

#include <fstream>
#include <iterator>

namespace diffserve {
namespace {

constexpr size_t kMaxTokensFileBytes = size_t{256} << 20;

}  // namespace

Status CheckIds(const std::vector<int32_t>& ids, int vocab_size, const std::string& param) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    return InvalidArgument(param + ": token " + std::to_string(i) + " is " +
                               std::to_string(ids[i]) + ", allowed: 0.." +
                               std::to_string(vocab_size - 1),
                           param);
  }
  return {};
}

Result<std::vector<int32_t>> PromptTokenIds(const PromptOptions& prompt, int vocab_size) {
  std::string text = prompt.tokens;
  std::string param = "--tokens";
  if (!prompt.tokens_file.empty()) {
    param = "--tokens-file";
    std::ifstream file(prompt.tokens_file, std::ios::binary | std::ios::ate);
    if (!file)
      return InvalidArgument("--tokens-file " + prompt.tokens_file + ": cannot be read", param);
    const auto size = static_cast<size_t>(file.tellg());
    if (size > kMaxTokensFileBytes) {
      return InvalidArgument("--tokens-file " + prompt.tokens_file + ": " + std::to_string(size) +
                                 " bytes, allowed: at most " + std::to_string(kMaxTokensFileBytes),
                             param);
    }
    file.seekg(0);
    text.resize(size);
    file.read(text.data(), static_cast<std::streamsize>(size));
  }
  Result<std::vector<int32_t>> ids = ParseTokenIds(text, param);
  if (!ids.ok()) return ids;
  DS_RETURN_IF_ERROR(CheckIds(ids.value(), vocab_size, param));
  return ids;
}

}  // namespace diffserve
