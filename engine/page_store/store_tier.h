// SPDX-License-Identifier: Apache-2.0
// StoreTier: the PageTier whose entries are in an EntryStore: in files, or in host memory. One
// thread appends entries and a few threads read them, straight between the store and the KV memory.
//
// Thread safety: as PageTier; stats() may be called from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/contract/page_tier.h"
#include "engine/page_store/entry_store.h"

namespace diffserve {

class KvCache;

class StoreTier : public PageTier {
 public:
  // The memory of an entry's page or snapshot: its parts in all layers. Called by the tier's
  // threads.
  using EntryMemory = std::function<std::vector<iovec>(const TierEntry&)>;
  // The memory in a cache.
  static EntryMemory MemoryIn(const KvCache& kv);

  // Returns a function that blocks until all steps launched so far have finished: a device may
  // still use memory that is about to be filled. Called by the engine thread.
  using MarkSteps = std::function<std::function<Status()>()>;

  StoreTier(std::unique_ptr<EntryStore> store, EntryMemory memory, MarkSteps mark_steps = nullptr);
  ~StoreTier() override;  // ends after the page that is being written

  void OnDone(std::function<void()> wake) override { wake_ = std::move(wake); }
  bool Contains(const TierKey& key, TierKind kind) override;
  void Load(uint64_t load, std::vector<TierEntry> entries) override;
  void Cancel(uint64_t load) override;
  int num_free() const override;
  void Keep(TierEntry entry) override;
  bool IsSettled() const override { return !store_->HasUnwritten(); }
  void Forget(const TierKey& key) override;
  void Clear() override;
  std::vector<Done> TakeDone() override;
  TierStats stats() const override;

 private:
  static constexpr int kMaxKeeps = 16;  // entries that wait for the writer
  static constexpr int kNumReaders = 2;

  struct LoadInProgress {
    std::vector<TierEntry> entries;
    std::function<Status()> await_steps;  // may be nullptr
    size_t next = 0;                      // the first entry that no reader has taken
    size_t num_right;  // no entry from here on is needed: one before it is damaged, or the load is
                       // cancelled
    int num_reading = 0;
  };
  struct EntryToKeep {
    TierEntry entry;
    uint64_t epoch = 0;
  };
  void Write();
  void WriteBehind();
  void NoteWrite(const Status& status);
  void Read();

  const std::unique_ptr<EntryStore> store_;
  const EntryMemory memory_;
  const MarkSteps mark_steps_;
  std::function<void()> wake_;

  mutable std::mutex mutex_;  // of what follows, up to the counters
  std::condition_variable work_, writable_;
  std::deque<EntryToKeep> keeps_;  // the first is being written
  std::unordered_map<uint64_t, LoadInProgress> loads_;
  std::deque<uint64_t> order_;  // of the loads with entries that no reader has taken
  std::vector<Done> done_;
  uint64_t epoch_ = 0;  // counts calls of Clear
  bool stop_ = false;

  std::atomic<uint64_t> bytes_read_{0}, bytes_written_{0}, pages_read_{0}, pages_written_{0},
      read_errors_{0}, write_errors_{0};
  std::vector<std::thread> threads_;  // declared last: they use all members above
};

}  // namespace diffserve
