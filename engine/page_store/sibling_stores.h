// SPDX-License-Identifier: Apache-2.0
// SiblingStores: what other processes have written into the directory that a PageStore shares with
// them: the records in subdirectories of the same fingerprint, whether their process runs, has
// ended or was killed. They are only read, and without a lock: a record does not change after it
// was appended, and a file that is gone or damaged is a miss. No file is kept open, so a deleted
// one takes no room.
//
// Thread safety: Look is called by one thread at a time; all other members by any thread.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/page_store/page_record.h"
#include "engine/page_store/store_directory.h"
#include "kernels/base/status.h"

namespace diffserve {

class SiblingStores {
 public:
  // The most records that are known at a time.
  static constexpr size_t kMaxRecords = size_t{1} << 20;

  // `directory`: of --kv-cache-dir. `own`: the subdirectory in it that is no sibling's.
  SiblingStores(std::string directory, const std::string& own, const Fingerprint& fingerprint);

  // Learns which records have come and which files are gone. Reads lists and the headers of records
  // that are new, no pages.
  void Look();

  bool Contains(const RecordKey& key) const;
  // As EntryStore::Read. Marks the file as just used.
  Status Read(const RecordKey& key, std::span<const int32_t> tokens,
              std::span<const iovec> payload);
  // The record is not found any more.
  void Erase(const RecordKey& key);
  // What is there up to the next Look is not found any more; what is appended later is.
  void Clear();
  size_t num_records() const;

 private:
  struct Segment {
    Segment(std::string segment_path, uint64_t segment_inode)
        : path(std::move(segment_path)), inode(segment_inode) {}
    const std::string path;
    const uint64_t inode;
    uint64_t bytes = 0;                // of the file at the last look
    uint64_t known_to = kSectorBytes;  // records before this offset are known, or were forgotten
    bool is_complete = false;
    bool is_touched = false;      // since the last look
    std::vector<RecordKey> keys;  // in the index
  };
  struct Location {
    std::shared_ptr<Segment> segment;
    RecordEntry entry;
  };
  using Segments = std::map<std::string, std::shared_ptr<Segment>>;  // by path

  void LookAt(const SegmentFile& file, Segments& found);
  // REQUIRES: mutex_ is held.
  void ForgetSegment(const std::shared_ptr<Segment>& segment);
  void Forget(const RecordKey& key, const std::shared_ptr<Segment>& segment);

  const std::string directory_, own_name_, prefix_;
  const Fingerprint fingerprint_;

  // Only the looking thread uses these.
  Segments segments_;
  bool forgets_ = false;  // this look indexes nothing

  mutable std::mutex mutex_;  // of what follows, and of the segments' keys and is_touched
  std::unordered_map<RecordKey, Location, RecordKeyHash> index_;
  bool is_cleared_ = false;  // since the last look began
};

}  // namespace diffserve
