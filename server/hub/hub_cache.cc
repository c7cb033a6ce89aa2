// SPDX-License-Identifier: Apache-2.0
#include "server/hub/hub_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <random>
#include <string_view>

#include "models/regular_file.h"

namespace diffserve {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kModels = "models--", kSeparator = "--";
constexpr size_t kMaxRefBytes = 128;
constexpr int kRandomDigits = 16;
constexpr mode_t kLockMode = 0664;  // several users may share a cache

std::string FolderName(const std::string& repository) {
  std::string name = std::string(kModels) + repository;
  return name.replace(name.find('/'), 1, kSeparator);
}

// "ORG/NAME"; empty: it is no folder of a model.
std::string RepositoryOf(const std::string& folder) {
  if (!folder.starts_with(kModels)) return {};
  std::string name = folder.substr(kModels.size());
  const size_t separator = name.find(kSeparator);
  if (separator == std::string::npos) return {};
  return name.replace(separator, kSeparator.size(), "/");
}

std::optional<std::string> ReadCommit(const fs::path& path) {
  const Result<std::string> text = ReadRegularFile(path.string(), kMaxRefBytes);
  if (!text.ok()) return std::nullopt;
  const std::string commit = text->substr(0, text->find_last_not_of(" \r\n") + 1);
  return IsCommit(commit) ? std::optional(commit) : std::nullopt;
}

Status CannotMake(const fs::path& path, const std::string& why) {
  return InvalidArgument(path.string() + ": cannot be made: " + why +
                         "; HF_HUB_CACHE or HF_HOME names another folder for models of the hub");
}

Status MakeFolder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  return error ? CannotMake(path, error.message()) : Status();
}

// A name that is not in use, for what is renamed into place afterwards. Nothing else may have it:
// what makes it must fail if it exists.
fs::path TemporaryBeside(const fs::path& path) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::random_device random;
  std::string name = path.filename().string() + ".";
  for (int i = 0; i < kRandomDigits; ++i) name += kDigits[random() & 15];
  return path.parent_path() / (name + ".tmp");
}

// Whether `descriptor` is still the file at `path`: who releases a lock may remove the file.
bool IsFileAt(int descriptor, const fs::path& path) {
  struct stat open_file{}, named{};
  return fstat(descriptor, &open_file) == 0 && stat(path.c_str(), &named) == 0 &&
         open_file.st_dev == named.st_dev && open_file.st_ino == named.st_ino;
}

// The refs of a repository, by commit.
std::map<std::string, std::string> RefsByCommit(const fs::path& refs) {
  std::map<std::string, std::string> found;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(refs, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::optional<std::string> commit = ReadCommit(entry->path());
    if (!commit) continue;
    std::string& name = found[*commit];
    const std::string ref = entry->path().lexically_relative(refs).string();
    if (name.empty() || ref == "main" || (name != "main" && ref < name)) name = ref;
  }
  return found;
}

}  // namespace

BlobLock::~BlobLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

fs::path HubCache::FolderOf(const std::string& repository) const {
  return dir_ / FolderName(repository);
}

fs::path HubCache::SnapshotOf(const std::string& repository, const std::string& commit) const {
  return FolderOf(repository) / "snapshots" / commit;
}

fs::path HubCache::BlobOf(const std::string& repository, const std::string& etag) const {
  return FolderOf(repository) / "blobs" / etag;
}

std::optional<std::string> HubCache::CommitOf(const HubName& name) const {
  if (IsCommit(name.revision)) return name.revision;
  return ReadCommit(FolderOf(name.repository) / "refs" / name.revision);
}

std::vector<CachedModel> HubCache::List() const {
  std::vector<CachedModel> models;
  std::error_code error;
  for (fs::directory_iterator folder(dir_, error), end; !error && folder != end;
       folder.increment(error)) {
    const std::string repository = RepositoryOf(folder->path().filename().string());
    if (repository.empty()) continue;
    const std::map<std::string, std::string> refs = RefsByCommit(folder->path() / "refs");
    std::error_code unreadable;
    for (fs::directory_iterator snapshot(folder->path() / "snapshots", unreadable);
         !unreadable && snapshot != end; snapshot.increment(unreadable)) {
      const std::string commit = snapshot->path().filename().string();
      if (!IsCommit(commit)) continue;
      const auto ref = refs.find(commit);
      models.push_back({{repository, ref == refs.end() ? commit : ref->second},
                        commit,
                        snapshot->path().string()});
    }
  }
  std::ranges::sort(models, {}, [](const CachedModel& model) { return model.name.Text(); });
  return models;
}

std::optional<std::string> HubCache::NewerThan(const fs::path& dir) {
  std::error_code error;
  fs::path snapshot = fs::absolute(dir, error).lexically_normal();
  if (!snapshot.has_filename()) snapshot = snapshot.parent_path();  // a slash at the end
  const fs::path folder = snapshot.parent_path().parent_path();
  const std::string commit = snapshot.filename().string();
  if (error || snapshot.parent_path().filename() != "snapshots" || !IsCommit(commit) ||
      RepositoryOf(folder.filename().string()).empty() ||
      RefsByCommit(folder / "refs").contains(commit))
    return std::nullopt;
  return ReadCommit(folder / "refs" / "main");
}

Status HubCache::Prepare(const std::string& repository, const std::string& commit) const {
  DS_RETURN_IF_ERROR(MakeFolder(FolderOf(repository) / "blobs"));
  DS_RETURN_IF_ERROR(MakeFolder(SnapshotOf(repository, commit)));
  return MakeFolder(dir_ / ".locks" / FolderName(repository));
}

Result<std::optional<BlobLock>> HubCache::TryLock(const std::string& repository,
                                                  const std::string& etag, bool is_patient) const {
  const fs::path path = dir_ / ".locks" / FolderName(repository) / (etag + ".lock");
  for (;;) {
    const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kLockMode);
    if (descriptor < 0) return CannotMake(path, std::strerror(errno));
    BlobLock lock(descriptor);
    while (flock(descriptor, LOCK_EX | (is_patient ? 0 : LOCK_NB)) != 0) {
      if (errno == EINTR) continue;
      if (errno == EWOULDBLOCK) return std::optional<BlobLock>();
      return InvalidArgument(path.string() + ": cannot be locked: " + std::strerror(errno) +
                             "; set HF_HUB_CACHE to a folder of a file system with locks");
    }
    if (IsFileAt(descriptor, path)) return std::optional<BlobLock>(std::move(lock));
  }
}

Status HubCache::Link(const std::string& repository, const std::string& commit,
                      const std::string& file, const std::string& etag) const {
  const fs::path link = SnapshotOf(repository, commit) / file;
  DS_RETURN_IF_ERROR(MakeFolder(link.parent_path()));
  const fs::path target = BlobOf(repository, etag).lexically_relative(link.parent_path());
  const fs::path made = TemporaryBeside(link);
  std::error_code error;
  fs::create_symlink(target, made, error);
  if (!error) fs::rename(made, link, error);
  return error ? CannotMake(link, error.message()) : Status();
}

Status HubCache::WriteRef(const HubName& name, const std::string& commit) const {
  if (name.revision == commit || CommitOf(name) == commit) return {};
  const fs::path ref = FolderOf(name.repository) / "refs" / name.revision;
  DS_RETURN_IF_ERROR(MakeFolder(ref.parent_path()));
  const fs::path made = TemporaryBeside(ref);
  const int descriptor = open(made.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                              0666);
  if (descriptor < 0) return CannotMake(made, std::strerror(errno));
  const bool is_written = write(descriptor, commit.data(), commit.size()) ==
                          static_cast<ssize_t>(commit.size());
  if (close(descriptor) == 0 && is_written && rename(made.c_str(), ref.c_str()) == 0) return {};
  const Status failed = CannotMake(ref, std::strerror(errno));
  unlink(made.c_str());
  return failed;
}

}  // namespace diffserve
