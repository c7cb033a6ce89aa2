// SPDX-License-Identifier: Apache-2.0
// The run directories of guygrigsby/diff-mlx, which trains the first version of Diff Transformer in
// MLX. config.json is {"model": {...}, "train": {...}} with its own keys. One safetensors file
// holds the weights under names in tensor_names.cc, and the optimizer state.
#pragma once

#include <string>
#include <string_view>

#include "models/convert/source_directory.h"

namespace diffserve {

// `text` is the source's config.json. For a run directory of diff-mlx, returns the complete
// config.json of its `diff_transformer` model; for any other source `text` itself. Settings that
// our model would compute differently are refused by key, and so is the variant without lambda.
Result<std::string> ServedConfigText(const std::string& text, const SourceDirectory& source);

}  // namespace diffserve
