// SPDX-License-Identifier: Apache-2.0
// DiskTier: the PageTier whose pages are in a PageStore. One thread writes pages, and a few threads
// read them, straight between the files and the memory of the KV pages.
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

#include "engine/page_store/page_store.h"
#include "engine/page_tier.h"

namespace diffserve {

class DiskTier : public PageTier {
 public:
  // The memory of a page id: its parts in all layers. Called by the tier's threads.
  using PageMemory = std::function<std::vector<iovec>(int32_t page)>;

  DiskTier(std::unique_ptr<PageStore> store, PageMemory memory);
  ~DiskTier() override;  // ends after the page that is being written

  void OnDone(std::function<void()> wake) override { wake_ = std::move(wake); }
  bool Contains(const TierKey& key) override;
  void Load(uint64_t load, std::vector<TierPage> pages) override;
  void Cancel(uint64_t load) override;
  int num_free() const override;
  void Keep(TierPage page) override;
  void Forget(const TierKey& key) override;
  void Clear() override;
  std::vector<Done> TakeDone() override;
  TierStats stats() const override;

 private:
  static constexpr int kMaxKeeps = 16;  // pages that wait for the writer
  static constexpr int kNumReaders = 2;

  struct LoadingPages {
    std::vector<TierPage> pages;
    size_t next = 0;   // the first page that no reader has taken
    size_t num_right;  // no page from here on is needed: one before it is damaged, or the load is
                       // cancelled
    int num_reading = 0;
  };
  struct PageToKeep {
    TierPage page;
    uint64_t epoch = 0;
  };
  void Write();
  void Read();

  const std::unique_ptr<PageStore> store_;
  const PageMemory memory_;
  std::function<void()> wake_;

  mutable std::mutex mutex_;  // of what follows, up to the counters
  std::condition_variable work_, writable_;
  std::deque<PageToKeep> keeps_;  // the first is being written
  std::unordered_map<uint64_t, LoadingPages> loads_;
  std::deque<uint64_t> order_;  // of the loads with pages that no reader has taken
  std::vector<Done> done_;
  uint64_t epoch_ = 0;  // counts calls of Clear
  bool stop_ = false;

  std::atomic<uint64_t> bytes_read_{0}, bytes_written_{0}, pages_read_{0}, pages_written_{0},
      read_errors_{0}, write_errors_{0};
  std::vector<std::thread> threads_;  // declared last: they use all members above
};

}  // namespace diffserve
