// SPDX-License-Identifier: Apache-2.0
#include "models/convert/source_directory.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "kernels/base/refusal.h"
#include "models/checkpoint.h"
#include "models/regular_file.h"

namespace diffserve {
namespace {

namespace fs = std::filesystem;

constexpr char kSingle[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";
constexpr size_t kMaxFiles = 65536;  // in the directory

bool IsPickle(const std::string& name) {
  return name.ends_with(".pth") || name.ends_with(".pt") || name.ends_with(".bin") ||
         name.ends_with(".ckpt") || name.ends_with(".pkl");
}

const char kPickleAdvice[] =
    "a pickle is never opened, since it can run code: save its tensors with "
    "safetensors.torch.save_file into a directory with a "
    "config.json, and convert that";

bool IsBelow(const fs::path& path, const fs::path& dir) {
  return std::mismatch(dir.begin(), dir.end(), path.begin(), path.end()).first == dir.end();
}

}  // namespace

Result<std::unique_ptr<SourceDirectory>> SourceDirectory::Open(const std::string& dir) {
  std::error_code error;
  const fs::file_status status = fs::status(dir, error);
  if (!fs::exists(status)) return InvalidArgument(dir + ": does not exist");
  if (!fs::is_directory(status)) {
    return InvalidArgument(dir + ": " +
                           (IsPickle(dir)
                                ? kPickleAdvice
                                : RefusalText("is not a directory", "one with a config.json")));
  }
  std::unique_ptr<SourceDirectory> source(new SourceDirectory());
  source->path_ = dir;
  DS_RETURN_IF_ERROR(source->List());
  for (const char* name : {"config.json", "generation_config.json"}) {
    if (source->Has(name)) DS_RETURN_IF_ERROR(source->CheckInside(name));
  }
  Result<std::vector<std::string>> names = source->FindTensorFiles();
  if (!names.ok()) return names.status();
  source->tensor_file_names_ = std::move(names).value();

  std::map<std::string, const SafetensorsFile*, std::less<>> seen;
  for (const std::string& name : source->tensor_file_names_) {
    DS_RETURN_IF_ERROR(source->CheckInside(name));
    Result<std::unique_ptr<SafetensorsFile>> file = SafetensorsFile::Open(
        (fs::path(dir) / name).string());
    if (!file.ok()) return file.status();
    for (const auto& [tensor, entry] : (*file)->header()) {
      source->tensors_.push_back({std::string(tensor), entry, file->get()});
      const auto [other, is_new] = seen.emplace(tensor, file->get());
      if (!is_new) {
        return InvalidArgument((*file)->path() + ": tensor " + source->tensors_.back().name +
                               " is also in " + other->second->path());
      }
    }
    source->files_.push_back(std::move(file).value());
  }
  return source;
}

Status SourceDirectory::List() {
  std::error_code error;
  for (fs::directory_iterator entry(path_, error), end; !error && entry != end;
       entry.increment(error)) {
    if (file_names_.size() == kMaxFiles) {
      return NotAllowed(path_ + ": holds too many files", "at most " + std::to_string(kMaxFiles));
    }
    file_names_.push_back(entry->path().filename().string());
  }
  if (error) return InvalidArgument(path_ + ": cannot be read: " + error.message());
  std::ranges::sort(file_names_);
  return Status();
}

bool SourceDirectory::Has(const std::string& name) const {
  return std::ranges::binary_search(file_names_, name);
}

std::vector<std::string> SourceDirectory::NamesIn(const std::string& folder,
                                                  std::string_view ending) const {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(fs::path(path_) / folder, error), end;
       !error && entry != end && names.size() < kMaxFiles; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.ends_with(ending)) names.push_back(folder + "/" + name);
  }
  std::ranges::sort(names);
  return names;
}

Status SourceDirectory::CheckInside(const std::string& name) const {
  std::error_code error;
  const fs::path link = fs::path(path_) / name;
  const fs::path dir = fs::canonical(path_, error);
  const fs::path target = error ? fs::path() : fs::canonical(link, error);
  if (error) return InvalidArgument(link.string() + ": cannot be opened: " + error.message());
  if (IsBelow(target, dir)) return Status();
  // models--OWNER--NAME/snapshots/REVISION/FILE -> models--OWNER--NAME/blobs/HASH
  const fs::path cache = dir.parent_path().parent_path();
  if (dir.parent_path().filename() == "snapshots" && target.parent_path() == cache / "blobs")
    return Status();
  return InvalidArgument(link.string() + ": is a link to " + target.string() +
                         ", outside of the directory, and is not followed; copy the file there (cp "
                         "-L) if it is meant");
}

Result<std::vector<std::string>> SourceDirectory::FindTensorFiles() const {
  if (Has(kSingle)) return std::vector<std::string>{kSingle};
  if (Has(kIndex)) return ReadIndex();
  std::vector<std::string> found;
  bool has_pickle = false;
  for (const std::string& name : file_names_) {
    if (name.ends_with(".safetensors")) found.push_back(name);
    has_pickle = has_pickle || IsPickle(name);
  }
  if (found.size() == 1) return found;
  if (found.empty() && has_pickle)
    return InvalidArgument(path_ + ": holds no *.safetensors file; " + kPickleAdvice);
  return NotAllowed(path_ + ": holds " + (found.empty() ? "no" : std::to_string(found.size())) +
                        " *.safetensors files",
                    std::string("model.safetensors, shards with ") + kIndex + ", exactly one file");
}

Result<std::vector<std::string>> SourceDirectory::ReadIndex() const {
  DS_RETURN_IF_ERROR(CheckInside(kIndex));
  const std::string index_path = (fs::path(path_) / kIndex).string();
  const auto places = ReadWeightMap(index_path);
  if (!places.ok()) return places.status();
  std::vector<std::string> shards;
  for (const auto& [tensor, shard] : *places) {
    if (!shards.empty() && shard == shards.back()) continue;
    if (!Has(shard))
      return InvalidArgument(path_ + "/" + shard + ": is missing, but " + index_path + " names it");
    shards.push_back(shard);
  }
  return shards;
}

Result<std::string> SourceDirectory::Read(const std::string& name, size_t max_bytes) const {
  DS_RETURN_IF_ERROR(CheckInside(name));
  return ReadRegularFile((fs::path(path_) / name).string(), max_bytes);
}

}  // namespace diffserve
