// SPDX-License-Identifier: Apache-2.0
#include "server/hub/model_place.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "kernels/base/refusal.h"
#include "kernels/process/log.h"
#include "server/hub/hub_cache.h"
#include "server/hub/hub_settings.h"
#include "server/hub/model_fetch.h"

namespace diffserve {
namespace {

namespace fs = std::filesystem;

constexpr char kDemo[] = "demo", kDiff[] = "diff";
constexpr char kProgram[] = "/proc/self/exe";
constexpr char kInstalled[] = "../share/diffserve/models";
constexpr char kBuilt[] = "../../../models/demo";  // of build/PRESET/server/diffserve

// The models in a folder; none if it cannot be read.
std::vector<std::string> ModelsIn(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    if (fs::exists(entry->path() / "config.json", ignored))
      names.push_back(entry->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

// Packages install models/demo/diff as demo.
std::string ShortName(const std::string& model) { return model == kDemo ? kDiff : model; }

// A directory without links; as it is written if it cannot be read.
fs::path RealPath(const fs::path& path) {
  std::error_code error;
  fs::path real = fs::canonical(path, error);
  return error ? path : real;
}

// What a name that is no directory may have meant; empty: nothing is known.
std::string MeantBy(const std::string& name) {
  if (ParseModelName("hf:" + name).ok()) return "hf:" + name;
  const Result<ModelName> bundled = ParseModelName("bundled:" + name);
  if (!bundled.ok()) return "";
  return FindBundled(std::get<BundledName>(*bundled), kProgram).ok() ? "bundled:" + name : "";
}

}  // namespace

Result<std::string> FindBundled(const BundledName& name, const fs::path& program) {
  const fs::path real_program = RealPath(program);
  std::string allowed;
  for (const char* const place : {kInstalled, kBuilt}) {
    const fs::path folder = (real_program.parent_path() / place).lexically_normal();
    for (const std::string& model : ModelsIn(folder)) {
      if (ShortName(model) == ShortName(name.name)) return (folder / model).string();
      allowed += (allowed.empty() ? "bundled:" : ", bundled:") + ShortName(model);
    }
  }
  if (allowed.empty()) allowed = "none, since no model came with " + real_program.string();
  return NotOneOf("MODEL_DIR", "bundled:" + name.name, allowed);
}

Result<std::string> FindModel(const std::string& name, FileUse use, LoadProgress& progress) {
  const Result<ModelName> parsed = ParseModelName(name);
  if (!parsed.ok()) return parsed.status();
  if (const auto* bundled = std::get_if<BundledName>(&*parsed))
    return FindBundled(*bundled, kProgram);
  const auto* hub_name = std::get_if<HubName>(&*parsed);
  if (hub_name == nullptr) {
    if (const auto newest = HubCache::NewerThan(name)) {
      Log(LogLevel::kWarning, "snapshot_not_newest", {{"used", name}, {"main", *newest}});
    }
    std::error_code ignored;
    if (fs::exists(name, ignored)) return name;
    if (name == kDemo) return FindBundled({kDemo}, kProgram);
    const std::string meant = MeantBy(name);
    if (meant.empty()) return name;
    return InvalidArgument(
        "MODEL_DIR is \"" + name + "\", which is no directory; did you mean " + meant + "?",
        "MODEL_DIR");
  }
  const Result<HubSettings> settings = ReadHubSettings(
      [](const char* variable) { return std::getenv(variable); });
  if (!settings.ok()) return settings.status();
  return FetchModel(*hub_name, use, *settings, progress);
}

std::vector<std::string> NamesOfDirectory(const std::string& model_dir) {
  const fs::path path = RealPath(model_dir);
  const std::string name = path.filename().string();
  if (const Result<std::string> bundled = FindBundled({kDiff}, kProgram);
      bundled.ok() && RealPath(*bundled) == path)
    return {name, name == kDemo ? kDiff : kDemo};
  constexpr std::string_view kModels = "models--", kSeparator = "--";
  std::string repository = path.parent_path().parent_path().filename().string();
  if (path.parent_path().filename() != "snapshots" || !repository.starts_with(kModels))
    return {name};
  repository.erase(0, kModels.size());
  for (size_t at; (at = repository.find(kSeparator)) != std::string::npos;)
    repository.replace(at, kSeparator.size(), "/");
  return {repository};
}

}  // namespace diffserve
