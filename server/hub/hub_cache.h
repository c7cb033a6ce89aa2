// SPDX-License-Identifier: Apache-2.0
// HubCache: the folder in which Hugging Face's tools keep what they fetched, in their layout:
//
//   models--ORG--NAME/refs/REVISION           the commit of a branch or tag
//   models--ORG--NAME/blobs/ETAG              content: SHA-256 of a large file, else git's SHA-1
//   models--ORG--NAME/snapshots/COMMIT/FILE   relative link to a blob
//   .locks/models--ORG--NAME/ETAG.lock        held with flock while the blob is fetched
//
// Thread safety: all functions may be called from any thread and, like theirs, from several
// processes at once.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/status.h"
#include "server/hub/model_name.h"

namespace diffserve {

// Held until its end.
class BlobLock {
 public:
  explicit BlobLock(int descriptor) : descriptor_(descriptor) {}
  ~BlobLock();
  BlobLock(BlobLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  BlobLock(const BlobLock&) = delete;
  BlobLock& operator=(const BlobLock&) = delete;

 private:
  int descriptor_;
};

struct CachedModel {
  HubName name;  // the revision is a ref, or the commit if no ref names it
  std::string commit;
  std::string snapshot_dir;
};

class HubCache {
 public:
  explicit HubCache(std::filesystem::path dir) : dir_(std::move(dir)) {}

  const std::filesystem::path& dir() const { return dir_; }
  // The commit that the revision is, or was when it was fetched. nullopt: not known here.
  std::optional<std::string> CommitOf(const HubName& name) const;
  std::filesystem::path SnapshotOf(const std::string& repository, const std::string& commit) const;
  std::filesystem::path BlobOf(const std::string& repository, const std::string& etag) const;
  // All snapshots, by repository and revision.
  std::vector<CachedModel> List() const;

  // The commit that `main` is, if `dir` is a snapshot of another commit that no ref names. nullopt:
  // it is none, or of any folder.
  static std::optional<std::string> NewerThan(const std::filesystem::path& dir);

  // Creates the folders of a repository. Error: one of them cannot be made.
  Status Prepare(const std::string& repository, const std::string& commit) const;
  // Waits while another process holds it. `waits` is called before it does.
  template <typename Waits>
  Result<BlobLock> Lock(const std::string& repository, const std::string& etag,
                        const Waits& waits) const {
    Result<std::optional<BlobLock>> at_once = TryLock(repository, etag, /*is_patient=*/false);
    if (!at_once.ok()) return at_once.status();
    if (*at_once) return std::move(**at_once);
    waits();
    Result<std::optional<BlobLock>> later = TryLock(repository, etag, /*is_patient=*/true);
    if (!later.ok()) return later.status();
    return std::move(**later);
  }
  // Makes snapshots/COMMIT/FILE a link to the blob. REQUIRES: `file` is a relative path without
  // "..".
  Status Link(const std::string& repository, const std::string& commit, const std::string& file,
              const std::string& etag) const;
  // Does nothing if the revision is the commit itself.
  Status WriteRef(const HubName& name, const std::string& commit) const;

 private:
  std::filesystem::path FolderOf(const std::string& repository) const;
  // nullopt: another process holds it, and the caller is not patient.
  Result<std::optional<BlobLock>> TryLock(const std::string& repository, const std::string& etag,
                                          bool is_patient) const;

  const std::filesystem::path dir_;
};

}  // namespace diffserve
