// SPDX-License-Identifier: Apache-2.0
// ApiKeys: the keys of --api-key-file, stored as SHA-256 digests and compared in constant time.
// Both ports check it before routing. Thread safety: const after Load.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"

namespace diffserve {

class ApiKeys {
 public:
  // Without keys: every request is accepted.
  ApiKeys() = default;
  // Reads one key per line; empty lines and lines that begin with '#' are skipped. Error: the file
  // is unreadable or has no key, or a key has characters that no header can carry. The message
  // never contains a key.
  static Result<ApiKeys> Load(const std::string& path);
  static Result<ApiKeys> FromText(std::string_view text, const std::string& name_in_errors);

  bool required() const { return !digests_.empty(); }
  // True without keys.
  bool Accepts(std::string_view presented) const { return !required() || Find(presented); }
  // The index of the key in the file, from 0; nullopt if it is not in the file. All digests are
  // always compared in full.
  std::optional<size_t> Find(std::string_view presented) const;
  // The key of an Authorization value "Bearer KEY" (scheme in any case), or nothing.
  static std::string_view BearerToken(std::string_view authorization);

 private:
  using Digest = std::array<unsigned char, 32>;
  std::vector<Digest> digests_;
};

// The first key of such a file, for a client of a server. Errors as those of ApiKeys::Load.
Result<std::string> FirstApiKey(const std::string& path);

}  // namespace diffserve
