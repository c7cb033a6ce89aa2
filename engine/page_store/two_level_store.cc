// SPDX-License-Identifier: Apache-2.0
#include "engine/page_store/two_level_store.h"

#include <algorithm>
#include <utility>

namespace diffserve {

TwoLevelStore::TwoLevelStore(std::unique_ptr<HostStore> host, std::unique_ptr<EntryStore> files)
    : host_(std::move(host)), files_(std::move(files)) {}

bool TwoLevelStore::Contains(const RecordKey& key) const {
  if (host_->Contains(key)) return true;
  const std::lock_guard lock(mutex_);
  return (!writing_ || !writing_->is_stale || writing_->key != key) && files_->Contains(key);
}

Status TwoLevelStore::Append(const RecordKey& key, std::span<const int32_t> tokens,
                             std::span<const iovec> payload) {
  if (Contains(key)) return {};
  const size_t units = host_->UnitsOf(BytesOf(payload));
  Status written;
  const auto is_full = [&] {
    const std::lock_guard lock(mutex_);
    return unwritten_units_ > 0 && unwritten_units_ + units > host_->num_units() / 2;
  };
  while (is_full()) {
    const std::optional<Status> status = WriteBehind();
    if (status && written.ok()) written = *status;
  }
  DS_RETURN_IF_ERROR(host_->Append(key, tokens, payload));
  HostStore::Held held = host_->Hold(key);
  const std::lock_guard lock(mutex_);
  if (held == nullptr) return written;  // forgotten in the meantime
  unwritten_.push_back({key, {tokens.begin(), tokens.end()}, std::move(held), units});
  unwritten_units_ += units;
  return written;
}

std::optional<Status> TwoLevelStore::WriteBehind() {
  Unwritten next;
  {
    const std::lock_guard lock(mutex_);
    if (unwritten_.empty()) return std::nullopt;
    next = std::move(unwritten_.front());
    unwritten_.pop_front();
    writing_ = {.key = next.key};
  }
  const Status written = files_->Append(next.key, next.tokens, host_->HostMemory(next.held));
  next.held.reset();
  const std::lock_guard lock(mutex_);
  unwritten_units_ -= next.units;
  if (writing_->is_stale) files_->Erase(next.key);
  writing_.reset();
  return written;
}

bool TwoLevelStore::HasUnwritten() const {
  const std::lock_guard lock(mutex_);
  return !unwritten_.empty() || writing_.has_value();
}

Status TwoLevelStore::Read(const RecordKey& key, std::span<const int32_t> tokens,
                           std::span<const iovec> payload) {
  uint64_t num_erasures = 0;
  {
    const std::lock_guard lock(mutex_);
    num_erasures = num_erasures_;
  }
  if (!Contains(key)) return Status(StatusCode::kNotFound, "the page is in neither");
  const Result<HostStore::Held> held = host_->Fill(
      key, tokens, BytesOf(payload),
      [&](std::span<const iovec> memory) { return files_->Read(key, tokens, memory); });
  if (!held.ok()) return held.status();
  {
    const std::lock_guard lock(mutex_);
    if (num_erasures != num_erasures_) host_->Erase(key);
  }
  return host_->ReadHeld(*held, payload);
}

void TwoLevelStore::Erase(const RecordKey& key) {
  const std::lock_guard lock(mutex_);
  ++num_erasures_;
  std::erase_if(unwritten_, [&](const Unwritten& entry) {
    unwritten_units_ -= entry.key == key ? entry.units : 0;
    return entry.key == key;
  });
  if (writing_ && writing_->key == key) writing_->is_stale = true;
  host_->Erase(key);
  files_->Erase(key);
}

void TwoLevelStore::Clear() {
  const std::lock_guard lock(mutex_);
  ++num_erasures_;
  for (const Unwritten& entry : unwritten_) unwritten_units_ -= entry.units;
  unwritten_.clear();
  if (writing_) writing_->is_stale = true;
  host_->Clear();
  files_->Clear();
}

}  // namespace diffserve
