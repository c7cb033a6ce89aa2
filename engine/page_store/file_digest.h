// SPDX-License-Identifier: Apache-2.0
// Digests of files that do not change, such as weights. Each file is read once: its digest is noted
// in a directory, with the file's path, size, inode and time of change.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/status.h"

namespace diffserve {

struct FileDigest {
  uint64_t high = 0, low = 0;  // XXH3, 128 bits
};

// `notes`: a directory that is created if needed; a note that cannot be read or written costs
// another reading. Without `keeps_note` none is written. Error: kInvalidArgument with the path and
// what the system said.
Result<FileDigest> DigestOfFile(const std::string& path, const std::string& notes,
                                bool keeps_note = true);

}  // namespace diffserve
