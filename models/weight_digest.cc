// SPDX-License-Identifier: Apache-2.0
#include "models/weight_digest.h"

#define XXH_STATIC_LINKING_ONLY  // a state of known size
#include <xxhash.h>

#include <cstdio>

namespace diffserve {

struct WeightDigest::State {
  XXH3_state_t hash;
};

RowDigest DigestOf(std::span<const std::byte> row) {
  const XXH128_hash_t hash = XXH3_128bits(row.data(), row.size());
  return {hash.high64, hash.low64};
}

WeightDigest::WeightDigest() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->hash);
}

WeightDigest::~WeightDigest() = default;

void WeightDigest::BeginTensor(std::string_view name, std::string_view dtype,
                               const std::vector<int64_t>& shape) {
  std::string head(name);
  head += '\0' + std::string(dtype);
  for (const int64_t extent : shape) head += ' ' + std::to_string(extent);
  head += '\0';
  XXH3_128bits_update(&state_->hash, head.data(), head.size());
}

void WeightDigest::AddBytes(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->hash, bytes.data(), bytes.size());
}

void WeightDigest::AddRows(std::span<const RowDigest> rows) { AddBytes(std::as_bytes(rows)); }

std::string WeightDigest::Text() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->hash);
  char text[33];
  std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

}  // namespace diffserve
