// SPDX-License-Identifier: Apache-2.0
#include "server/hub/model_place.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "kernels/base/log.h"
#include "server/hub/hub_cache.h"
#include "server/hub/hub_settings.h"
#include "server/hub/model_fetch.h"

namespace diffserve {
namespace {

namespace fs = std::filesystem;

constexpr char kDemo[] = "demo";
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
std::string ShortName(const std::string& model) { return model == kDemo ? "diff" : model; }

}  // namespace

Result<std::string> FindBundled(const BundledName& name, const fs::path& program) {
  std::error_code error;
  fs::path real_program = fs::canonical(program, error);
  if (error) real_program = program;
  std::string allowed;
  for (const char* const place : {kInstalled, kBuilt}) {
    const fs::path folder = (real_program.parent_path() / place).lexically_normal();
    for (const std::string& model : ModelsIn(folder)) {
      if (ShortName(model) == ShortName(name.name)) return (folder / model).string();
      allowed += (allowed.empty() ? "bundled:" : ", bundled:") + ShortName(model);
    }
  }
  if (allowed.empty()) allowed = "none, since no model came with " + real_program.string();
  return InvalidArgument("MODEL_DIR is \"bundled:" + name.name + "\", allowed: " + allowed,
                         "MODEL_DIR");
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
    if (name != kDemo || fs::exists(name, ignored)) return name;
    const Result<std::string> demo = FindBundled({kDemo}, kProgram);
    return demo.ok() ? *demo : name;
  }
  const Result<HubSettings> settings = ReadHubSettings(
      [](const char* variable) { return std::getenv(variable); });
  if (!settings.ok()) return settings.status();
  return FetchModel(*hub_name, use, *settings, progress);
}

}  // namespace diffserve
