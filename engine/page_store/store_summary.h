// SPDX-License-Identifier: Apache-2.0
// What the directory of --kv-cache-dir holds, as a process sees it that uses none of it. It writes
// nothing and takes no lock, so servers may start, run and end meanwhile.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/status.h"

namespace diffserve {

struct StoreSummary {
  std::string name;      // of the subdirectory: SubdirectoryPrefix(fingerprint) and a number
  bool is_held = false;  // by a process
  int64_t num_segments = 0;
  int64_t num_incomplete = 0;  // that have no list of their records, as the one being written
  int64_t num_unreadable = 0;  // that are no segment of this fingerprint, or cannot be read
  int64_t bytes = 0;           // of all segments
  int64_t num_pages = 0, num_snapshots = 0;      // in those that can be read
  int64_t oldest_use_ns = 0, newest_use_ns = 0;  // of a segment, since 1970; 0: there is none
};
// One per subdirectory, by name. Error: kInvalidArgument with the path and what the system said.
Result<std::vector<StoreSummary>> SummarizeStores(const std::string& directory);

}  // namespace diffserve
