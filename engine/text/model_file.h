// Reads a small text file of a model directory whole, with a limit: what is in a model directory is
// trusted in nothing.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "kernels/base/status.h"

namespace diffserve {

// Error: kNotFound if there is no such file; else one line with the path and what is wrong (not a
// regular file, above the limit, unreadable).
Result<std::string> ReadModelFile(const std::string& model_dir, std::string_view name,
                                  size_t max_bytes);

// The same, and an empty text if there is no such file. A file that is there and empty is an error.
Result<std::string> ReadOptionalModelFile(const std::string& model_dir, std::string_view name,
                                          size_t max_bytes);

}  // namespace diffserve
