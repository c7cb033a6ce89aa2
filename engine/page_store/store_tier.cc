// SPDX-License-Identifier: Apache-2.0
#include "engine/page_store/store_tier.h"

#include <sys/resource.h>

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/process/check.h"
#include "kernels/process/log.h"
#include "kernels/process/thread_registry.h"
#include "models/kv_cache.h"

namespace diffserve {
namespace {

// Where no core is free, steps go first: no request waits for a page to be written.
constexpr int kWriterNice = 10;

RecordKey ToRecord(const TierKey& key, TierKind kind) {
  return {key.high, key.low, kind == TierKind::kPage ? RecordKind::kPage : RecordKind::kSnapshot};
}

RecordKey ToRecord(const TierEntry& entry) { return ToRecord(entry.key, entry.kind()); }

}  // namespace

StoreTier::EntryMemory StoreTier::MemoryIn(const KvCache& kv) {
  return [kv](const TierEntry& entry) {
    const SnapshotMemory& snapshot = entry.snapshot;
    std::vector<iovec> parts;
    for (const std::span<std::byte> part :
         entry.kind() == TierKind::kPage ? kv.PageMemory(entry.page)
                                         : kv.SnapshotMemory(snapshot.slot, snapshot.window_pages))
      parts.push_back({part.data(), part.size()});
    return parts;
  };
}

StoreTier::StoreTier(std::unique_ptr<EntryStore> store, EntryMemory memory, MarkSteps mark_steps)
    : store_(std::move(store)), memory_(std::move(memory)), mark_steps_(std::move(mark_steps)) {
  threads_.emplace_back([this] { Write(); });
  for (int i = 0; i < kNumReaders; ++i) threads_.emplace_back([this] { Read(); });
}

StoreTier::~StoreTier() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  writable_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool StoreTier::Contains(const TierKey& key, TierKind kind) {
  return store_->Contains(ToRecord(key, kind));
}

void StoreTier::Load(uint64_t load, std::vector<TierEntry> entries) {
  DS_CHECK(!entries.empty(), "a load has entries");
  std::function<Status()> await_steps = mark_steps_ ? mark_steps_() : nullptr;
  {
    const std::lock_guard lock(mutex_);
    const size_t count = entries.size();
    loads_[load] = {
        .entries = std::move(entries), .await_steps = std::move(await_steps), .num_right = count};
    order_.push_back(load);
  }
  work_.notify_all();
}

void StoreTier::Cancel(uint64_t load) {
  {
    const std::lock_guard lock(mutex_);
    const auto it = loads_.find(load);
    if (it == loads_.end()) return;  // it is done, but not taken
    it->second.num_right = 0;
  }
  work_.notify_all();  // a reader ends it
}

int StoreTier::num_free() const {
  const std::lock_guard lock(mutex_);
  return kMaxKeeps - static_cast<int>(keeps_.size());
}

void StoreTier::Keep(TierEntry entry) {
  {
    const std::lock_guard lock(mutex_);
    DS_CHECK(std::ssize(keeps_) < kMaxKeeps, "the caller asks num_free");
    keeps_.push_back({std::move(entry), epoch_});
  }
  writable_.notify_one();
}

void StoreTier::Forget(const TierKey& key) {
  store_->Erase(ToRecord(key, TierKind::kPage));
  store_->Erase(ToRecord(key, TierKind::kSnapshot));
}

void StoreTier::Clear() {
  const std::lock_guard lock(mutex_);
  ++epoch_;
  store_->Clear();
}

std::vector<PageTier::Done> StoreTier::TakeDone() {
  const std::lock_guard lock(mutex_);
  return std::exchange(done_, {});
}

// The writer's thread. An entry that cannot be written is lost.
void StoreTier::Write() {
  const NamedThread named("kv_writer", "a page to write");
  setpriority(PRIO_PROCESS, 0, kWriterNice);  // of this thread only, on Linux
  std::unique_lock lock(mutex_);
  while (true) {
    const auto has_keep = [&] { return stop_ || !keeps_.empty(); };
    if (!store_->HasUnwritten()) writable_.wait(lock, has_keep);
    if (stop_) return;
    if (keeps_.empty()) {
      lock.unlock();
      WriteBehind();
      lock.lock();
      continue;
    }
    const EntryToKeep& keep = keeps_.front();  // stays in place: others are added at the back
    const bool is_stale = keep.epoch != epoch_;
    lock.unlock();
    if (!is_stale) {
      const std::vector<iovec> parts = memory_(keep.entry);
      const Status status = store_->Append(ToRecord(keep.entry), keep.entry.tokens, parts);
      if (status.ok()) {
        pages_written_ += 1;
        bytes_written_ += BytesOf(parts);
      }
      NoteWrite(status);
    }
    lock.lock();
    if (keep.epoch != epoch_) store_->Erase(ToRecord(keep.entry));  // cleared in the meantime
    keeps_.pop_front();
    done_.push_back({});
    lock.unlock();
    wake_();
    lock.lock();
  }
}

// What the device's memory does not wait for.
void StoreTier::WriteBehind() {
  if (const std::optional<Status> status = store_->WriteBehind()) NoteWrite(*status);
  if (IsSettled()) wake_();
}

void StoreTier::NoteWrite(const Status& status) {
  if (status.ok() || write_errors_.fetch_add(1) > 0)
    return;  // the first is logged, all are counted
  Log(LogLevel::kWarning, "kv_page_not_written", {{"reason", status.message()}});
}

// A reader's thread: takes one entry at a time, of the oldest load.
void StoreTier::Read() {
  const NamedThread named("kv_reader", "a page to read");
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [&] { return stop_ || !order_.empty(); });
    if (stop_) return;
    const uint64_t id = order_.front();
    LoadInProgress& load = loads_.at(id);  // stays in place until it is done
    const size_t index = load.next;
    if (index < load.num_right) {
      ++load.next;
      ++load.num_reading;
      const TierEntry& entry = load.entries[index];
      lock.unlock();
      const std::vector<iovec> parts = memory_(entry);
      Status status = load.await_steps ? load.await_steps() : Status();
      if (status.ok()) status = store_->Read(ToRecord(entry), entry.tokens, parts);
      if (status.ok()) {
        pages_read_ += 1;
        bytes_read_ += BytesOf(parts);
      } else if (status.code() != StatusCode::kNotFound && read_errors_.fetch_add(1) == 0) {
        Log(LogLevel::kWarning, "kv_page_not_read", {{"reason", status.message()}});
      }
      lock.lock();
      --load.num_reading;
      if (!status.ok()) load.num_right = std::min(load.num_right, index);
    }
    if (load.next >= load.num_right && std::erase(order_, id) > 0) work_.notify_all();
    if (load.next < load.num_right || load.num_reading > 0) continue;
    done_.push_back({.load = id, .num_loaded = static_cast<int>(load.num_right)});
    loads_.erase(id);
    lock.unlock();
    wake_();
    lock.lock();
  }
}

TierStats StoreTier::stats() const {
  return {.bytes = store_->bytes(),
          .bytes_max = store_->max_bytes(),
          .pages = store_->num_records(),
          .sibling_pages = store_->num_sibling_records(),
          .bytes_read = bytes_read_,
          .bytes_written = bytes_written_,
          .pages_read = pages_read_,
          .pages_written = pages_written_,
          .read_errors = read_errors_,
          .write_errors = write_errors_};
}

}  // namespace diffserve
