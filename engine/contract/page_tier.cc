// SPDX-License-Identifier: Apache-2.0
#include "engine/contract/page_tier.h"

#include <openssl/evp.h>

#include <array>
#include <cstring>
#include <memory>

#include "kernels/process/check.h"

namespace diffserve {
namespace {

// The first 128 bits of SHA-256.
TierKey DigestOf(std::span<const std::span<const std::byte>> parts) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        &EVP_MD_CTX_free);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  bool ok = context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1;
  for (const std::span<const std::byte> part : parts)
    ok = ok && EVP_DigestUpdate(context.get(), part.data(), part.size()) == 1;
  DS_CHECK(ok && EVP_DigestFinal_ex(context.get(), digest.data(), nullptr) == 1,
           "SHA-256 is always there");
  TierKey key;
  std::memcpy(&key, digest.data(), sizeof(key));
  return key;
}

}  // namespace

TierKey RootTierKey(std::string_view salt) {
  const std::span<const std::byte> parts[] = {std::as_bytes(std::span(salt))};
  return DigestOf(parts);
}

TierKey NextTierKey(const TierKey& parent, std::span<const int32_t> tokens) {
  const std::span<const std::byte> parts[] = {std::as_bytes(std::span(&parent, 1)),
                                              std::as_bytes(tokens)};
  return DigestOf(parts);
}

}  // namespace diffserve
