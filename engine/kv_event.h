// KvEvent: what entered or left the prefix index, for whoever routes prompts to where their prefix
// is. A plain value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace diffserve {

struct KvEvent {
  enum class Kind { kStored, kRemoved, kCleared };  // the last: all pages are gone
  Kind kind = Kind::kStored;
  std::vector<uint64_t> hashes;  // chain hashes, one a page; stored ones follow one another in
                                 // their chain; none where all are gone
  // Stored pages only.
  std::optional<uint64_t> parent;  // the page that hashes[0] hangs on; nullopt: it is the first of
                                   // its chain
  std::vector<int32_t> tokens;     // [hashes.size() * page_size]
  std::string salt;                // the chain's cache salt, told with its first page
};

}  // namespace diffserve
