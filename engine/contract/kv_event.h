// SPDX-License-Identifier: Apache-2.0
// KvEvent: pages that entered or left the prefix index. A router uses these events to send a prompt
// to the server that holds its prefix. A plain value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace diffserve {

struct KvEvent {
  enum class Kind { kStored, kRemoved, kCleared };  // kCleared: all pages have left
  Kind kind = Kind::kStored;
  std::vector<uint64_t> hashes;  // chain hashes, one per page; stored ones are consecutive in their
                                 // chain; empty for kCleared
  // Set for kStored only.
  std::optional<uint64_t> parent;  // hash of the page before hashes[0]; nullopt: hashes[0] is the
                                   // first of its chain
  std::vector<int32_t> tokens;     // [hashes.size() * page_size]
  std::string salt;                // the chain's cache salt; sent with its first page
};

}  // namespace diffserve
