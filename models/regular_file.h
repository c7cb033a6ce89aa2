// SPDX-License-Identifier: Apache-2.0
// Opens and reads files whose names come from outside. A pipe, device or directory in a file's
// place is refused by name instead of blocking, and so is the placeholder of an unfinished
// download.
#pragma once

#include <cstddef>
#include <string>

#include "kernels/base/status.h"

namespace diffserve {

// A descriptor for reading, which the caller closes. Error: kNotFound if no such file exists;
// otherwise one line with the path and what is wrong.
Result<int> OpenRegularFile(const std::string& path);

// The whole file. Errors: those of opening, more than `max_bytes`, or a failed read.
Result<std::string> ReadRegularFile(const std::string& path, size_t max_bytes);
// The same without a byte order mark at the beginning, which some editors write before JSON.
Result<std::string> ReadJsonFile(const std::string& path, size_t max_bytes);

}  // namespace diffserve
