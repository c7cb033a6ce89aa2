// SPDX-License-Identifier: Apache-2.0
#include "server/hub/model_fetch.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "kernels/process/log.h"
#include "models/checkpoint.h"
#include "models/load_config.h"
#include "models/model_config.h"
#include "server/hub/hub_cache.h"
#include "server/hub/hub_client.h"

namespace diffserve {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxNamedModels = 8;
constexpr double kMiB = 1 << 20;

std::string InMiB(uint64_t bytes) {
  return std::to_string(static_cast<uint64_t>(static_cast<double>(bytes) / kMiB) + 1) + " MiB";
}

// The name as part of an address.
std::string InUrl(const std::string& revision) {
  std::string text;
  for (const char c : revision) text += c == '/' ? "%2F" : c == '+' ? "%2B" : std::string(1, c);
  return text;
}

// What a snapshot lacks that the loader needs; empty: it can be loaded.
std::string MissingIn(const fs::path& snapshot, FileUse use) {
  std::error_code ignored;
  const auto has = [&](const std::string& name) { return fs::exists(snapshot / name, ignored); };
  if (!has("config.json")) return "config.json";
  if (use == FileUse::kConfig || has(kSingleWeights)) return {};
  if (!has(kWeightIndex)) return kSingleWeights;
  const auto places = ReadWeightMap((snapshot / kWeightIndex).string());
  if (!places.ok()) return kWeightIndex;
  for (const auto& [tensor, shard] : *places) {
    if (!has(shard)) return shard;
  }
  return {};
}

class ModelFetch {
 public:
  ModelFetch(const HubName& name, FileUse use, const HubSettings& settings, LoadProgress& progress)
      : name_(name),
        use_(use),
        settings_(settings),
        progress_(progress),
        cache_(settings.cache_dir),
        client_(settings, name) {}

  Result<std::string> Run() {
    const std::optional<std::string> cached = CompleteSnapshot();
    if (cached && (IsCommit(name_.revision) || settings_.offline)) return *cached;
    if (settings_.offline)
      return Status(StatusCode::kUnavailable, "HF_HUB_OFFLINE is set" + InCache());
    if (cached) client_.SetHasFallback();
    Status status = ReadRepository();
    bool may_use_cached = status.code() != StatusCode::kNotFound;
    if (status.ok()) {
      status = FetchAll();
      if (status.ok()) return snapshot_.string();
      may_use_cached = status.code() == StatusCode::kUnavailable;
    }
    if (!cached && status.code() == StatusCode::kUnavailable)
      return Status(status.code(), status.message() + InCache());
    if (!cached || !may_use_cached) return status;
    Log(LogLevel::kWarning, "hub_unavailable",
        {{"repository", name_.Text()},
         {"reason", status.message()},
         {"used", *cached},
         {"newest", repository_.commit.empty() ? "unknown" : repository_.commit}});
    return *cached;
  }

 private:
  std::optional<std::string> CompleteSnapshot() const {
    const std::optional<std::string> commit = cache_.CommitOf(name_);
    if (!commit) return std::nullopt;
    const fs::path snapshot = cache_.SnapshotOf(name_.repository, *commit);
    return MissingIn(snapshot, use_).empty() ? std::optional(snapshot.string()) : std::nullopt;
  }

  // "; NAME is not in the cache DIR, which has hf:A/B, hf:C/D".
  std::string InCache() const {
    std::string text = "; " + name_.Text() + " is not in the cache " + settings_.cache_dir;
    const std::optional<std::string> commit = cache_.CommitOf(name_);
    std::error_code ignored;
    if (commit && fs::exists(cache_.SnapshotOf(name_.repository, *commit), ignored)) {
      const fs::path snapshot = cache_.SnapshotOf(name_.repository, *commit);
      return text + ": " + snapshot.string() + " lacks " + MissingIn(snapshot, use_);
    }
    if (commit && *commit != name_.revision)
      text += ": its " + name_.revision + " is commit " + *commit + ", of which nothing is there";
    std::vector<CachedModel> models = cache_.List();
    std::erase_if(models, [&](const CachedModel& model) {
      return !MissingIn(model.snapshot_dir, use_).empty();
    });
    if (models.empty()) return text + ", which has no model";
    for (size_t i = 0; i < std::min(models.size(), kMaxNamedModels); ++i)
      text += (i == 0 ? ", which has " : ", ") + models[i].name.Text();
    return models.size() > kMaxNamedModels ? text + ", ..." : text;
  }

  Status ReadRepository() {
    const std::string path = "/api/models/" + name_.repository + "/revision/" +
                             InUrl(name_.revision) + "?blobs=true";
    const Result<std::string> text = client_.Read(path);
    if (!text.ok()) return text.status();
    DS_RETURN_IF_ERROR(Assign(
        &repository_, ParseRepository(*text, name_.Text() + ": " + settings_.endpoint + path)));
    if (IsCommit(name_.revision) && repository_.commit != name_.revision) {
      return InvalidArgument(name_.Text() + ": " + settings_.endpoint + " answers with commit " +
                             repository_.commit);
    }
    snapshot_ = cache_.SnapshotOf(name_.repository, repository_.commit);
    return {};
  }

  Status FetchAll() {
    DS_RETURN_IF_ERROR(FetchFiles(ConfigFiles(repository_, use_)));
    // Before gigabytes are fetched for nothing. `convert` reads configs that no model is served by.
    if (use_ != FileUse::kConvert) {
      const Result<ModelConfig> config = LoadModelConfig(snapshot_.string());
      if (!config.ok()) return InvalidArgument(config.status().message());
    }
    std::vector<HubFile> files = TextFiles(repository_);
    if (use_ != FileUse::kConfig) {
      const Result<std::vector<HubFile>> weights = WeightFiles(repository_, use_,
                                                               (snapshot_ / kWeightIndex).string());
      if (!weights.ok()) return InvalidArgument(name_.Text() + ": " + weights.status().message());
      DS_RETURN_IF_ERROR(FetchFiles(files));  // so that a snapshot with weights lacks no tokenizer
      files = *weights;
    }
    DS_RETURN_IF_ERROR(FetchFiles(files));
    return cache_.WriteRef(name_, repository_.commit);
  }

  // Whether the snapshot has the file.
  bool Has(const HubFile& file) const {
    std::error_code error;
    return fs::file_size(snapshot_ / file.name, error) == file.size && !error;
  }
  bool HasBlob(const HubFile& file) const {
    std::error_code error;
    return fs::file_size(cache_.BlobOf(name_.repository, file.etag), error) == file.size && !error;
  }

  // Fetches those that the snapshot lacks.
  Status FetchFiles(std::vector<HubFile> files) {
    DS_RETURN_IF_ERROR(client_.Describe(repository_.commit, &files));
    std::erase_if(files, [&](const HubFile& file) { return Has(file); });
    if (files.empty()) return {};
    DS_RETURN_IF_ERROR(cache_.Prepare(name_.repository, repository_.commit));
    // In one order, so that processes which fetch the same files never wait for each other in a
    // circle.
    std::ranges::sort(files, {}, &HubFile::etag);
    std::vector<BlobLock> locks;
    std::vector<std::unique_ptr<BlobFile>> blobs;
    for (const HubFile& file : files) {
      if (!blobs.empty() && blobs.back()->file().etag == file.etag) continue;
      Result<BlobLock> lock = cache_.Lock(name_.repository, file.etag, [&] {
        Log(LogLevel::kInfo, "download_waits",
            {{"repository", name_.Text()}, {"file", file.name}, {"for", "another process"}});
      });
      if (!lock.ok()) return lock.status();
      locks.push_back(std::move(lock).value());
      if (HasBlob(file)) continue;
      Result<std::unique_ptr<BlobFile>> blob = BlobFile::Open(
          cache_.BlobOf(name_.repository, file.etag), file);
      if (!blob.ok()) return blob.status();
      blobs.push_back(std::move(blob).value());
    }
    DS_RETURN_IF_ERROR(FetchBlobs(blobs));
    for (const HubFile& file : files)
      DS_RETURN_IF_ERROR(cache_.Link(name_.repository, repository_.commit, file.name, file.etag));
    return {};
  }

  Status FetchBlobs(const std::vector<std::unique_ptr<BlobFile>>& blobs) {
    if (blobs.empty()) return {};
    uint64_t missing = 0;
    for (const std::unique_ptr<BlobFile>& blob : blobs) missing += blob->missing();
    std::error_code unknown;
    const fs::space_info space = fs::space(cache_.dir(), unknown);
    if (!unknown && space.available < missing) {
      return Status(StatusCode::kResourceExhausted,
                    name_.Text() + ": needs " + InMiB(missing) + " more in " + settings_.cache_dir +
                        ", free: " + InMiB(space.available) +
                        "; make room there, or name another folder in HF_HUB_CACHE");
    }
    Log(LogLevel::kInfo, "download",
        {{"repository", name_.Text()},
         {"files", std::to_string(blobs.size())},
         {"bytes", std::to_string(missing)},
         {"cache", settings_.cache_dir}});
    const auto unchecked = std::ranges::count_if(
        blobs, [](const auto& blob) { return !blob->file().is_hash; });
    if (unchecked > 0) {
      Log(LogLevel::kWarning, "download_unchecked",
          {{"repository", name_.Text()},
           {"files", std::to_string(unchecked)},
           {"reason", settings_.endpoint + " lists no hash for them, so only sizes are checked"}});
    }
    progress_.Begin("downloading", missing);
    return client_.Fetch(repository_.commit, blobs, progress_);
  }

  const HubName& name_;
  const FileUse use_;
  const HubSettings& settings_;
  LoadProgress& progress_;
  const HubCache cache_;
  HubClient client_;
  Repository repository_;
  fs::path snapshot_;
};

}  // namespace

Result<std::string> FetchModel(const HubName& name, FileUse use, const HubSettings& settings,
                               LoadProgress& progress) {
  return ModelFetch(name, use, settings, progress).Run();
}

}  // namespace diffserve
