// SPDX-License-Identifier: Apache-2.0
// Repository: the files of a commit as the hub lists them, and which of them the loader reads. What
// the hub says is not trusted: only names that the loader itself would open are ever taken.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"

namespace diffserve {

struct HubFile {
  std::string name;   // in the repository
  uint64_t size = 0;  // bytes
  // SHA-256 of a large file (LFS), else the SHA-1 of git's blob; empty: it is not listed
  std::string etag;
  bool is_hash = true;  // false: the etag is what a mirror calls this content
};

// What the files are for.
enum class FileUse {
  kRun,      // the model runs
  kConfig,   // without its weights: --load-format dummy
  kConvert,  // `convert` reads them, which takes more forms
};

struct Repository {
  std::string commit;
  std::vector<HubFile> files;  // with plain names only; sorted by name

  const HubFile* Find(std::string_view name) const;  // nullptr: it has none
};

bool IsSha256(std::string_view etag);

// Reads the answer of /api/models/ORG/NAME/revision/REVISION?blobs=true. `what` names it in errors.
Result<Repository> ParseRepository(std::string_view json, const std::string& what);

// The files that are read before any other: config.json and the index of shards.
std::vector<HubFile> ConfigFiles(const Repository& repository, FileUse use);
// Tokenizer and chat templates.
std::vector<HubFile> TextFiles(const Repository& repository);
// The weights. `index_path`: the index of shards on this machine, if ConfigFiles has it. Error: the
// repository has no weights of a form that is read.
Result<std::vector<HubFile>> WeightFiles(const Repository& repository, FileUse use,
                                         const std::string& index_path);

inline constexpr char kSingleWeights[] = "model.safetensors";
inline constexpr char kWeightIndex[] = "model.safetensors.index.json";

}  // namespace diffserve
