// SPDX-License-Identifier: Apache-2.0
#include "models/model_directory.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>
#include <vector>

#include "models/config_reader.h"
#include "models/regular_file.h"

namespace diffserve {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxEntries = 4096;  // maximum entries read per directory

// Endings of files' names.
constexpr std::string_view kUnfinished[] = {".incomplete", ".part", ".aria2", ".crdownload"};
constexpr std::string_view kGguf[] = {".gguf"};
constexpr std::string_view kPickled[] = {".bin", ".pt", ".pth", ".ckpt"};
constexpr std::string_view kOfOthers[] = {".npz", ".h5", ".msgpack", ".onnx"};
constexpr std::string_view kSafetensors[] = {".safetensors"};

// Names of a directory's entries, sorted; none if it cannot be read.
std::vector<std::string> EntriesOf(const fs::path& dir) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(dir, error);
       !error && entry != fs::directory_iterator() && names.size() < kMaxEntries;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

// The first name with one of these endings; empty: there is none.
std::string FirstWith(const std::vector<std::string>& names,
                      std::span<const std::string_view> endings) {
  for (const std::string& name : names) {
    for (const std::string_view ending : endings) {
      if (name.ends_with(ending)) return ConfigReader::OneLine(name);
    }
  }
  return {};
}

bool Contains(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::binary_search(names, name);
}

std::string DescribeAdapter(const fs::path& dir) {
  std::string base = "its base model";
  Result<ConfigReader> config = ConfigReader::Open((dir / "adapter_config.json").string());
  if (config.ok() && config->IsString("base_model_name_or_path"))
    base += " " + ConfigReader::OneLine(config->String("base_model_name_or_path", ""));
  return "; it is the directory of a PEFT adapter (adapter_config.json), not of a model: merge the "
         "adapter into " +
         base + " and serve the result";
}

// For a folder models--ORG--NAME of Hugging Face's cache.
std::string DescribeCache(const fs::path& dir) {
  constexpr size_t kMaxRefBytes = 64;
  const std::vector<std::string> snapshots = EntriesOf(dir / "snapshots");
  if (snapshots.empty()) return "; it is a folder of Hugging Face's cache without a snapshot";
  const Result<std::string> main = ReadRegularFile((dir / "refs" / "main").string(), kMaxRefBytes);
  const bool has_main = main.ok() && Contains(snapshots, *main);
  return "; it is a folder of Hugging Face's cache, which has the model in snapshots/" +
         ConfigReader::OneLine(has_main ? *main : snapshots.front());
}

// The subdirectory that is a model's; empty: none.
std::string ModelWithin(const fs::path& dir, const std::vector<std::string>& names) {
  std::error_code ignored;
  for (const std::string& name : names) {
    if (fs::exists(dir / name / "config.json", ignored)) return ConfigReader::OneLine(name);
  }
  return {};
}

}  // namespace

std::vector<std::string> WeightFilesIn(const std::string& dir) {
  std::vector<std::string> names = EntriesOf(dir);
  std::erase_if(names, [](const std::string& name) {
    return !name.ends_with(".safetensors") && !name.ends_with(".safetensors.index.json");
  });
  return names;
}

std::string DescribeOtherFiles(const std::vector<std::string>& names) {
  std::string found;
  if (!(found = FirstWith(names, kGguf)).empty())
    return "; it holds a model in GGUF (" + found + "), not safetensors";
  if (!(found = FirstWith(names, kPickled)).empty())
    return "; it holds PyTorch's pickled weights (" + found + "), not safetensors";
  if (!(found = FirstWith(names, kOfOthers)).empty())
    return "; it holds weights of another framework (" + found + "), not safetensors";
  if (!(found = FirstWith(names, kSafetensors)).empty())
    return "; it holds " + found + " without an index that names it";
  return {};
}

std::string DescribeOtherContents(const std::string& dir) {
  const fs::path path(dir);
  const std::vector<std::string> names = EntriesOf(path);
  if (names.empty()) return "; the directory is empty";
  if (Contains(names, "adapter_config.json")) return DescribeAdapter(path);
  if (Contains(names, "snapshots") && Contains(names, "refs")) return DescribeCache(path);
  std::string found = FirstWith(names, kUnfinished);
  if (found.empty())
    found = FirstWith(EntriesOf(path / ".cache" / "huggingface" / "download"), kUnfinished);
  if (!found.empty()) return "; it contains an unfinished download: " + found;
  if (!(found = DescribeOtherFiles(names)).empty()) return found;
  if (!(found = ModelWithin(path, names)).empty())
    return "; its subdirectory " + found + " is one of a model";
  return {};
}

}  // namespace diffserve
