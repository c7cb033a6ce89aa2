// SPDX-License-Identifier: Apache-2.0
// FindModel: the directory that the argument MODEL_DIR means. It is the one place where a name
// becomes a directory. NamesOfDirectory: the way back.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "models/load_progress.h"
#include "server/hub/model_name.h"
#include "server/hub/repository.h"

namespace diffserve {

// "hf:ORG/NAME" is fetched if need be. "demo" is the bundled model, unless a directory has that
// name. Any other directory is returned as it is. Error: there is none, and the name looks like one
// on the hub or of a bundled model.
Result<std::string> FindModel(const std::string& name, FileUse use, LoadProgress& progress);

// A model that comes with the program at `program`, whose links are followed:
// ../share/diffserve/models/NAME of an installed one, models/demo/NAME of a build tree. "diff" and
// "demo" are the same: a package installs the first as the second. Error: neither is there; it
// lists those that are.
Result<std::string> FindBundled(const BundledName& name, const std::filesystem::path& program);

// The names under which a directory's model is served: the directory's name; of one in Hugging
// Face's cache, models--ORG--NAME/snapshots/HASH, ORG/NAME. The bundled model is demo and diff.
std::vector<std::string> NamesOfDirectory(const std::string& model_dir);

}  // namespace diffserve
