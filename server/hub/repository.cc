// SPDX-License-Identifier: Apache-2.0
#include "server/hub/repository.h"

#include <algorithm>

#include "kernels/base/refusal.h"
#include "models/checkpoint.h"
#include "models/model_directory.h"
#include "server/hub/model_name.h"
#include "server/json/json.h"

namespace diffserve {
namespace {

constexpr size_t kMaxFiles = 65536;
constexpr size_t kMaxNameBytes = 512;
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 50;
constexpr std::string_view kTextFiles[] = {"tokenizer.json",          "tokenizer_config.json",
                                           "special_tokens_map.json", "added_tokens.json",
                                           "chat_template.jinja",     "chat_template.json"};
constexpr std::string_view kTemplateFolder = "additional_chat_templates/";

bool IsPlainName(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name.front() != '.' &&
         std::ranges::all_of(name,
                             [](char c) { return c > ' ' && c < 0x7f && c != '/' && c != '\\'; });
}

// A file beside config.json, or a chat template one folder below.
bool IsReadableName(std::string_view name) {
  if (name.starts_with(kTemplateFolder))
    return name.ends_with(".jinja") && IsPlainName(name.substr(kTemplateFolder.size()));
  return IsPlainName(name);
}

// Without size or hash, as mirrors list them, the etag is empty.
void ReadFile(JsonFields& entry, HubFile* file) {
  entry.Seed("size", &file->size);
  entry.String("blobId", kMaxNameBytes, &file->etag);
  bool is_known = entry.Has("size") && file->etag.size() == 40;
  for (JsonFields& large : entry.Object("lfs")) {
    large.Seed("size", &file->size);
    large.String("sha256", kMaxNameBytes, &file->etag);
    is_known = large.Has("size") && IsSha256(file->etag);
    entry.Fail(large.status());
  }
  if (!is_known || !IsHex(file->etag) || file->size > kMaxFileBytes) file->etag.clear();
}

void AddIfThere(const Repository& repository, std::string_view name, std::vector<HubFile>& files) {
  if (const HubFile* file = repository.Find(name)) files.push_back(*file);
}

Result<std::vector<HubFile>> ShardsOf(const Repository& repository, const std::string& index_path) {
  const auto places = ReadWeightMap(index_path);
  if (!places.ok()) return places.status();
  std::vector<HubFile> shards;
  for (const auto& [tensor, shard] : *places) {
    if (!shards.empty() && shards.back().name == shard) continue;
    AddIfThere(repository, shard, shards);
    if (!shards.empty() && shards.back().name == shard) continue;
    return InvalidArgument(index_path + ": names " + shard + ", which the repository has not");
  }
  return shards;
}

}  // namespace

bool IsSha256(std::string_view etag) { return etag.size() == 64 && IsHex(etag); }

const HubFile* Repository::Find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(files, name, {}, &HubFile::name);
  return found != files.end() && found->name == name ? &*found : nullptr;
}

Result<Repository> ParseRepository(std::string_view json, const std::string& what) {
  Result<JsonFields> root = JsonFields::Parse(json);
  if (!root.ok()) return InvalidArgument(what + ": " + root.status().message());
  Repository repository;
  root->String("sha", kMaxNameBytes, &repository.commit);
  for (JsonFields& entry : root->Objects("siblings", kMaxFiles)) {
    HubFile file;
    entry.String("rfilename", kMaxNameBytes, &file.name);
    ReadFile(entry, &file);
    root->Fail(entry.status());
    if (IsReadableName(file.name)) repository.files.push_back(std::move(file));
  }
  if (!root->status().ok()) return InvalidArgument(what + ": " + root->status().message());
  if (!IsCommit(repository.commit))
    return NotAllowed(what + ": sha is " + QuotedText(repository.commit),
                      "the 40 digits of a commit; is this a hub?");
  if (repository.files.empty())
    return InvalidArgument(what + ": lists no file that is read; is the repository empty?");
  std::ranges::stable_sort(repository.files, {}, &HubFile::name);
  const auto same = std::ranges::unique(repository.files, {}, &HubFile::name);
  repository.files.erase(same.begin(), same.end());
  return repository;
}

std::vector<HubFile> ConfigFiles(const Repository& repository, FileUse use) {
  std::vector<HubFile> files;
  AddIfThere(repository, "config.json", files);
  AddIfThere(repository, "generation_config.json", files);
  if (use != FileUse::kConfig && repository.Find(kSingleWeights) == nullptr)
    AddIfThere(repository, kWeightIndex, files);
  return files;
}

std::vector<HubFile> TextFiles(const Repository& repository) {
  std::vector<HubFile> files;
  for (const std::string_view name : kTextFiles) AddIfThere(repository, name, files);
  for (const HubFile& file : repository.files) {
    if (file.name.starts_with(kTemplateFolder)) files.push_back(file);
  }
  return files;
}

Result<std::vector<HubFile>> WeightFiles(const Repository& repository, FileUse use,
                                         const std::string& index_path) {
  if (const HubFile* single = repository.Find(kSingleWeights)) return std::vector{*single};
  if (repository.Find(kWeightIndex) != nullptr) return ShardsOf(repository, index_path);
  std::vector<HubFile> found;
  std::vector<std::string> names;
  for (const HubFile& file : repository.files) {
    names.push_back(file.name);
    if (file.name.ends_with(".safetensors")) found.push_back(file);
  }
  if (use == FileUse::kConvert && found.size() == 1) return found;
  return InvalidArgument("holds neither " + std::string(kSingleWeights) + " nor " + kWeightIndex +
                         DescribeOtherFiles(names));
}

}  // namespace diffserve
