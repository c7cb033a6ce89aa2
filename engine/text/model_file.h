// SPDX-License-Identifier: Apache-2.0
// ReadModelFile: reads a small text file of a model directory whole, up to a size limit. The
// content of a model directory is never trusted.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "kernels/base/status.h"

namespace diffserve {

inline constexpr size_t kMaxTemplateBytes = size_t{1} << 20;  // of a chat template

// JSON is returned without a byte order mark. In a template that mark is text, as in transformers.
// Error: kNotFound if there is no such file; otherwise one line with the path and the reason (not a
// regular file, above the limit, unreadable).
Result<std::string> ReadModelFile(const std::string& model_dir, std::string_view name,
                                  size_t max_bytes);

// Like ReadModelFile, but returns an empty text if there is no such file. An existing empty file is
// an error.
Result<std::string> ReadOptionalModelFile(const std::string& model_dir, std::string_view name,
                                          size_t max_bytes);

}  // namespace diffserve
