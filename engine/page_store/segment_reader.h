// SPDX-License-Identifier: Apache-2.0
// Reads segments (page_record.h): which records they have, and a record. A segment that is being
// written may be read too.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/page_store/page_record.h"
#include "kernels/base/status.h"

namespace diffserve {

struct SegmentContents {
  Fingerprint fingerprint{};
  bool is_complete = false;  // it ends with the list of its records; otherwise they were looked for
  uint64_t bytes = 0;        // of the file
  uint64_t end = 0;          // where the next record would go; of a complete one: `bytes`
  std::vector<RecordEntry> entries;
};

// nullopt: no segment, or it cannot be read. In a segment without a list, records are looked for
// from `begin` on, where one record ends and the next begins.
std::optional<SegmentContents> ReadSegment(int fd, uint64_t begin = kSectorBytes);

// Fills the parts with a record's payload. Errors: kNotFound, it was forgotten; kInternal, it
// cannot be read, or is damaged, or is of other tokens.
Status ReadRecord(int fd, const RecordEntry& entry, std::span<const int32_t> tokens,
                  std::span<const iovec> payload);

// All bytes of the parts, from an offset on. False: errno says why, 0 for the file's end.
bool ReadAll(int fd, std::span<const iovec> parts, uint64_t offset);
bool WriteAll(int fd, std::span<const iovec> parts, uint64_t offset);
bool WriteAll(int fd, std::span<const std::byte> bytes, uint64_t offset);

}  // namespace diffserve
