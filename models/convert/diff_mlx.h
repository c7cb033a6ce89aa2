// The run directories of guygrigsby/diff-mlx, which trains the first version of Diff Transformer in
// MLX: config.json is {"model": {...}, "train": {...}} with keys of its own, and one safetensors
// file holds the weights under the names that tensor_names.cc knows, optimizer state beside them.
#pragma once

#include <string>
#include <string_view>

#include "models/convert/source_directory.h"

namespace diffserve {

// `text` is the source's config.json. Of a run directory of diff-mlx: the config.json of the
// `diff_transformer` model in it, whole. Of any other source: `text` itself. What the other model
// would compute differently is refused by its key, and so is the variant without lambda.
Result<std::string> ServedConfigText(const std::string& text, const SourceDirectory& source);

}  // namespace diffserve
