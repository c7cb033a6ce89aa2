// Opens and reads files by names that somebody else chose. A pipe, device or directory in a file's
// place is refused by name instead of waited for, and so is what a download left in its place.
#pragma once

#include <cstddef>
#include <string>

#include "kernels/base/status.h"

namespace diffserve {

// A descriptor for reading, which the caller closes. Error: kNotFound if there is nothing of that
// name; else one line with the path and what is wrong.
Result<int> OpenRegularFile(const std::string& path);

// The whole file. Error: those of opening, more than `max_bytes`, or it cannot be read.
Result<std::string> ReadRegularFile(const std::string& path, size_t max_bytes);

}  // namespace diffserve
