// SPDX-License-Identifier: Apache-2.0
// The directory of --kv-cache-dir: which subdirectory a process takes, and what other ones may
// keep. A subdirectory belongs to one fingerprint. The process that holds the lock on its file
// `lock` may read and write it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/page_store/page_record.h"
#include "kernels/base/status.h"

namespace diffserve {

inline constexpr std::string_view kSegmentSuffix = ".pages";

inline constexpr int64_t kMaxSegmentBytes = int64_t{1} << 40;  // a larger file is no segment

struct SegmentFile {
  std::string path;
  uint64_t number = 0;
  int64_t bytes = 0;    // at most kMaxSegmentBytes
  int64_t used_ns = 0;  // when it was last used: its modification time
  uint64_t inode = 0;
};
// The segments in a subdirectory, least recently used first.
std::vector<SegmentFile> SegmentFilesIn(const std::string& directory);

// How the names of a fingerprint's subdirectories begin; a number follows.
std::string SubdirectoryPrefix(const Fingerprint& fingerprint);
bool IsSubdirectoryName(std::string_view name);
// Whether a subdirectory may be used: a link leads elsewhere, and pages that another user may write
// are not to be trusted. The owner of the directory above may do anything anyway.
Status CheckSubdirectory(const std::string& path, const std::string& directory);
// Whether a process has the subdirectory. Takes no lock.
bool IsHeld(const std::string& subdirectory);

inline constexpr int64_t kMaxUnusedNs = int64_t{30} * 24 * 3600 * 1'000'000'000;  // 30 days

struct StoreDirectory {
  std::string path;
  int lock_fd = -1;         // holds the lock until it is closed
  int64_t other_bytes = 0;  // of the segments in subdirectories that no process holds
};
// Takes the first free subdirectory of this fingerprint, creating it if needed. In the other
// subdirectories that no process holds, segments of other fingerprints that were not used for
// kMaxUnusedNs are deleted, and then those used least recently, the other fingerprints' first,
// until they have at most `max_other_bytes`. Error: kInvalidArgument with the path and what the
// system said.
Result<StoreDirectory> TakeStoreDirectory(const std::string& directory,
                                          const Fingerprint& fingerprint, int64_t max_other_bytes);

}  // namespace diffserve
