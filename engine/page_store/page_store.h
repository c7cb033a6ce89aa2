// SPDX-License-Identifier: Apache-2.0
// PageStore: pages of the prefix cache in the files of a directory (page_record.h), for as long as
// they fit. Records are appended to segments of equal size. The segment that was used least
// recently is deleted as a whole when room is needed. A record is returned only if its checksum,
// its key and its tokens are right; what is damaged is a miss and is forgotten.
//
// Within the given directory each process takes a subdirectory of its own, named after the
// fingerprint, so several replicas and several models may be given the same one. It writes and
// deletes only there. What others with its fingerprint have written is found too
// (sibling_stores.h).
//
// What has been appended survives the end of the process, however it ends. A power failure may
// lose or damage the last records, which the checksums reveal.
//
// Thread safety: as EntryStore.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/page_store/entry_store.h"
#include "engine/page_store/sibling_stores.h"

namespace diffserve {

// The minimum number of segments. Making room deletes at most an eighth of the store.
inline constexpr int64_t kSegmentsMin = 8;

class PageStore : public EntryStore {
 public:
  struct Options {
    std::string directory;
    int64_t max_bytes = 0;      // of all files of this process and of left subdirectories
    Fingerprint fingerprint{};  // of what may be read; a file of another is never looked into
    int64_t segment_bytes = int64_t{256} << 20;
    size_t max_segments = 1024;  // each has a descriptor
    // How often a thread looks at what other processes have written; 0: never after Open.
    std::chrono::milliseconds look_interval{0};
  };
  // Creates the directory if needed (mode 0700, files 0600), takes a subdirectory and reads the
  // lists of its segments, of at most max_segments, and those of other processes. Subdirectories
  // that no process holds keep at most half of max_bytes (TakeStoreDirectory).
  static Result<std::unique_ptr<PageStore>> Open(const Options& options);
  ~PageStore() override;

  bool Contains(const RecordKey& key) const override;
  Status Append(const RecordKey& key, std::span<const int32_t> tokens,
                std::span<const iovec> payload) override;
  // Marks the record's segment as just used.
  Status Read(const RecordKey& key, std::span<const int32_t> tokens,
              std::span<const iovec> payload) override;
  void Erase(const RecordKey& key) override;  // its room is free with its segment
  void Clear() override;

  // These count its own segments only.
  int64_t bytes() const override;
  int64_t max_bytes() const override { return max_bytes_; }
  size_t num_records() const override;
  size_t num_sibling_records() const override { return siblings_.num_records(); }
  // What the thread does at each interval. REQUIRES: there is no such thread.
  void LookAtSiblings() { siblings_.Look(); }
  const std::string& directory() const { return directory_; }

 private:
  struct Segment {
    ~Segment();
    int fd = -1;
    uint64_t number = 0;
    std::string path;
    uint64_t bytes = 0;     // where the next record goes, or the file's size
    uint64_t last_use = 0;  // of clock_
    bool is_deleted = false;
    std::vector<RecordEntry> entries;
  };
  struct Location {
    std::shared_ptr<Segment> segment;
    RecordEntry entry;
  };

  PageStore(std::string directory, int lock_fd, const Options& options, int64_t max_bytes);
  void LookEvery(std::chrono::milliseconds interval);
  void LoadSegments();
  bool LoadSegment(Segment& segment) const;
  Status StartSegment();
  void FinishSegment();
  void MakeRoom(uint64_t bytes);
  void Delete(const std::shared_ptr<Segment>& segment);
  void Forget(const RecordKey& key, const Segment* segment);
  void Touch(Segment& segment);
  bool IsDeleted(const Segment& segment) const;
  std::string PathOf(uint64_t number) const;

  const std::string directory_;
  const int lock_fd_;
  const Fingerprint fingerprint_;
  const int64_t max_bytes_;
  const size_t max_segments_;
  const int64_t segment_bytes_;

  mutable std::mutex mutex_;  // of what follows
  std::unordered_map<RecordKey, Location, RecordKeyHash> index_;
  std::vector<std::shared_ptr<Segment>> segments_;  // by number; the last may be open
  uint64_t clock_ = 0;
  int64_t bytes_ = 0;

  // Only the appending thread uses these. The segment's members are written with mutex_ held.
  std::shared_ptr<Segment> open_;
  uint64_t next_number_ = 1;

  SiblingStores siblings_;
  std::mutex looks_mutex_;
  std::condition_variable stop_looking_;
  bool is_stopping_ = false;  // guarded by looks_mutex_
  std::thread looks_;         // declared last: it uses the members above
};

}  // namespace diffserve
