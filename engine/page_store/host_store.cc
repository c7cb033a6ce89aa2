// SPDX-License-Identifier: Apache-2.0
#include "engine/page_store/host_store.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/process/check.h"

namespace diffserve {
namespace {

size_t PayloadBytes(std::span<const iovec> payload) {
  return std::accumulate(payload.begin(), payload.end(), size_t{0},
                         [](size_t sum, const iovec& part) { return sum + part.iov_len; });
}

}  // namespace

Result<std::unique_ptr<HostStore>> HostStore::Create(std::shared_ptr<DeviceTransfer> transfer,
                                                     int64_t max_bytes, size_t unit_bytes) {
  const size_t num_units = static_cast<size_t>(max_bytes) / unit_bytes;
  DS_CHECK(num_units > 0, "a store has room");
  Result<std::shared_ptr<std::byte>> memory = transfer->AllocateHost(num_units * unit_bytes);
  if (!memory.ok()) return memory.status();
  return std::unique_ptr<HostStore>(
      new HostStore(std::move(transfer), std::move(*memory), num_units, unit_bytes));
}

HostStore::HostStore(std::shared_ptr<DeviceTransfer> transfer, std::shared_ptr<std::byte> memory,
                     size_t num_units, size_t unit_bytes)
    : transfer_(std::move(transfer)),
      memory_(std::move(memory)),
      num_units_(num_units),
      unit_bytes_(unit_bytes),
      free_units_(num_units) {
  std::iota(free_units_.rbegin(), free_units_.rend(), size_t{0});
}

// The parts of the payload that lie in one unit each, in order.
std::vector<MemoryCopy> HostStore::Copies(std::span<const iovec> payload,
                                          const std::vector<size_t>& units, bool to_host) const {
  std::vector<MemoryCopy> copies;
  size_t at = 0;  // in the payload
  for (const iovec& part : payload) {
    for (size_t done = 0; done < part.iov_len;) {
      const size_t in_unit = at % unit_bytes_;
      const size_t size = std::min(part.iov_len - done, unit_bytes_ - in_unit);
      auto* const device = static_cast<std::byte*>(part.iov_base) + done;
      auto* const host = memory_.get() + units[at / unit_bytes_] * unit_bytes_ + in_unit;
      copies.push_back(to_host ? MemoryCopy{device, host, size} : MemoryCopy{host, device, size});
      done += size;
      at += size;
    }
  }
  return copies;
}

bool HostStore::Contains(const RecordKey& key) const {
  const std::lock_guard lock(mutex_);
  return entries_.contains(key);
}

Status HostStore::Append(const RecordKey& key, std::span<const int32_t> tokens,
                         std::span<const iovec> payload) {
  if (Contains(key)) return {};
  auto entry = std::make_shared<Entry>();
  entry->tokens.assign(tokens.begin(), tokens.end());
  entry->payload_bytes = PayloadBytes(payload);
  const size_t num_units = (entry->payload_bytes + unit_bytes_ - 1) / unit_bytes_;
  {
    const std::lock_guard lock(mutex_);
    if (!TakeUnits(num_units, entry->units)) {
      return Status(StatusCode::kResourceExhausted,
                    "no host memory is free for " + std::to_string(entry->payload_bytes) +
                        " bytes: all of " + std::to_string(num_units_ * unit_bytes_) +
                        " are being read");
    }
  }
  const Status copied = transfer_->ToHost(Copies(payload, entry->units, /*to_host=*/true));
  const std::lock_guard lock(mutex_);
  if (!copied.ok()) {
    FreeUnits(*entry);
    return copied;
  }
  entry->use = uses_.insert(uses_.end(), key);
  entries_[key] = std::move(entry);
  return {};
}

Status HostStore::Read(const RecordKey& key, std::span<const int32_t> tokens,
                       std::span<const iovec> payload) {
  std::shared_ptr<Entry> entry;
  {
    const std::lock_guard lock(mutex_);
    const auto it = entries_.find(key);
    if (it == entries_.end())
      return Status(StatusCode::kNotFound, "the page is not in host memory");
    entry = it->second;
    DS_CHECK(
        entry->payload_bytes == PayloadBytes(payload) && std::ranges::equal(entry->tokens, tokens),
        "a key is of one run of tokens");
    ++entry->num_readers;
    uses_.splice(uses_.end(), uses_, entry->use);
  }
  const Status copied = transfer_->ToDevice(Copies(payload, entry->units, /*to_host=*/false));
  const std::lock_guard lock(mutex_);
  if (--entry->num_readers == 0 && entry->is_erased) FreeUnits(*entry);
  return copied;
}

// REQUIRES: mutex_ is held, here and below.
bool HostStore::TakeUnits(size_t count, std::vector<size_t>& units) {
  while (free_units_.size() < count) {
    if (!EvictOne()) return false;
  }
  units.assign(free_units_.end() - static_cast<ptrdiff_t>(count), free_units_.end());
  free_units_.resize(free_units_.size() - count);
  return true;
}

bool HostStore::EvictOne() {
  const auto oldest = std::ranges::find_if(
      uses_, [&](const RecordKey& key) { return entries_.at(key)->num_readers == 0; });
  if (oldest == uses_.end()) return false;
  Remove(RecordKey(*oldest));
  return true;
}

// The units of an entry that is being read become free when that is done.
void HostStore::Remove(const RecordKey& key) {
  const auto it = entries_.find(key);
  if (it == entries_.end()) return;
  Entry& entry = *it->second;
  entry.is_erased = true;
  uses_.erase(entry.use);
  if (entry.num_readers == 0) FreeUnits(entry);
  entries_.erase(it);
}

void HostStore::FreeUnits(const Entry& entry) {
  free_units_.insert(free_units_.end(), entry.units.begin(), entry.units.end());
}

void HostStore::Erase(const RecordKey& key) {
  const std::lock_guard lock(mutex_);
  Remove(key);
}

void HostStore::Clear() {
  const std::lock_guard lock(mutex_);
  while (!uses_.empty()) Remove(RecordKey(uses_.front()));
}

int64_t HostStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>((num_units_ - free_units_.size()) * unit_bytes_);
}

int64_t HostStore::max_bytes() const { return static_cast<int64_t>(num_units_ * unit_bytes_); }

size_t HostStore::num_records() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace diffserve
