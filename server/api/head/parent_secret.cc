// SPDX-License-Identifier: Apache-2.0
#include "server/api/head/parent_secret.h"

#include <openssl/crypto.h>

#include <algorithm>

#include "server/api/head/random_id.h"

namespace diffserve {
namespace {

constexpr size_t kSecretDigits = 64;
constexpr std::string_view kHexDigits = "0123456789abcdef";

}  // namespace

std::string NewParentSecret() { return RandomHex(kSecretDigits); }

bool IsParentSecret(std::string_view text) {
  return text.size() == kSecretDigits && std::ranges::all_of(text, [](char c) {
           return kHexDigits.find(c) != std::string_view::npos;
         });
}

std::string ClientFieldValue(std::string_view secret, std::string_view client) {
  return std::string(secret) + ":" + std::string(client);
}

std::optional<std::string> ClientInField(std::string_view value, std::string_view secret) {
  const size_t size = secret.size();
  if (size != kSecretDigits || value.size() <= size || value[size] != ':') return std::nullopt;
  if (CRYPTO_memcmp(value.data(), secret.data(), size) != 0) return std::nullopt;
  return std::string(value.substr(size + 1));
}

}  // namespace diffserve
