// SPDX-License-Identifier: Apache-2.0
// Reads the list of a segment (page_record.h): which records it has, not their pages. A segment
// that is being written may be read too.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/page_store/page_record.h"

namespace diffserve {

struct SegmentContents {
  Fingerprint fingerprint{};
  bool is_complete = false;  // it ends with the list of its records; otherwise they were looked for
  uint64_t bytes = 0;        // of the file
  std::vector<RecordEntry> entries;
};

// nullopt: no segment, or it cannot be read.
std::optional<SegmentContents> ReadSegment(int fd);

// All bytes of the parts, from an offset on. False: errno says why, 0 for the file's end.
bool ReadAll(int fd, std::span<const iovec> parts, uint64_t offset);
bool WriteAll(int fd, std::span<const iovec> parts, uint64_t offset);
bool WriteAll(int fd, std::span<const std::byte> bytes, uint64_t offset);

}  // namespace diffserve
