// SPDX-License-Identifier: Apache-2.0
#include "server/api/head/api_key.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "kernels/base/refusal.h"
#include "kernels/process/log.h"
#include "models/regular_file.h"

namespace diffserve {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr size_t kMaxKeyBytes = 512;

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

Result<std::string> ReadKeyFile(const std::string& path) {
  Result<std::string> text = ReadRegularFile(path, kMaxFileBytes);
  if (!text.ok()) return InvalidArgument(text.status().message(), "api-key-file");
  struct stat info{};
  if (stat(path.c_str(), &info) == 0 && (info.st_mode & S_IROTH) != 0) {
    Log(LogLevel::kWarning, "api_key_file_world_readable", {{"path", path}});
  }
  return text;
}

// At least one.
Result<std::vector<std::string_view>> KeysIn(std::string_view text,
                                             const std::string& name_in_errors) {
  std::vector<std::string_view> keys;
  int line_number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = Trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line_number;
    if (line.empty() || line.front() == '#') continue;
    const bool printable = std::all_of(line.begin(), line.end(),
                                       [](char c) { return c > ' ' && c < 127; });
    if (!printable || line.size() > kMaxKeyBytes) {
      return NotAllowed(
          name_in_errors + ": line " + std::to_string(line_number) + " is no key",
          "at most " + std::to_string(kMaxKeyBytes) + " printable ASCII characters without spaces",
          "api-key-file");
    }
    keys.push_back(line);
  }
  if (keys.empty()) return InvalidArgument(name_in_errors + ": holds no key", "api-key-file");
  return keys;
}

}  // namespace

Result<ApiKeys> ApiKeys::Load(const std::string& path) {
  const Result<std::string> text = ReadKeyFile(path);
  if (!text.ok()) return text.status();
  return FromText(*text, path);
}

Result<ApiKeys> ApiKeys::FromText(std::string_view text, const std::string& name_in_errors) {
  const Result<std::vector<std::string_view>> lines = KeysIn(text, name_in_errors);
  if (!lines.ok()) return lines.status();
  ApiKeys keys;
  for (const std::string_view key : *lines) {
    Digest digest;
    SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
    keys.digests_.push_back(digest);
  }
  return keys;
}

Result<std::string> FirstApiKey(const std::string& path) {
  const Result<std::string> text = ReadKeyFile(path);
  if (!text.ok()) return text.status();
  const Result<std::vector<std::string_view>> lines = KeysIn(*text, path);
  if (!lines.ok()) return lines.status();
  return std::string(lines->front());
}

std::optional<size_t> ApiKeys::Find(std::string_view presented) const {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(presented.data()), presented.size(), digest.data());
  size_t place = 0;  // from 1
  for (size_t i = 0; i < digests_.size(); ++i) {
    const bool equal = CRYPTO_memcmp(digests_[i].data(), digest.data(), digest.size()) == 0;
    place = equal ? i + 1 : place;
  }
  return place > 0 ? std::optional(place - 1) : std::nullopt;
}

std::string_view ApiKeys::BearerToken(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() <= kScheme.size()) return {};
  for (size_t i = 0; i < kScheme.size(); ++i) {
    const char c = authorization[i];
    if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c) != kScheme[i]) return {};
  }
  return Trimmed(authorization.substr(kScheme.size()));
}

}  // namespace diffserve
