// SPDX-License-Identifier: Apache-2.0
#include "engine/page_store/host_store.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/process/check.h"

namespace diffserve {

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
  return Add(key, tokens, BytesOf(payload),
             [&](const Entry& entry) {
               return transfer_->ToHost(Copies(payload, entry.units, /*to_host=*/true));
             })
      .status();
}

Result<HostStore::Held> HostStore::Fill(const RecordKey& key, std::span<const int32_t> tokens,
                                        size_t payload_bytes,
                                        const std::function<Status(std::span<const iovec>)>& fill) {
  if (Held held = Hold(key)) return held;
  return Add(key, tokens, payload_bytes,
             [&](const Entry& entry) { return fill(HostMemory(entry)); });
}

Result<HostStore::Held> HostStore::Add(const RecordKey& key, std::span<const int32_t> tokens,
                                       size_t payload_bytes,
                                       const std::function<Status(const Entry&)>& fill) {
  auto entry = std::make_shared<Entry>();
  entry->tokens.assign(tokens.begin(), tokens.end());
  entry->payload_bytes = payload_bytes;
  {
    const std::lock_guard lock(mutex_);
    if (!TakeUnits(UnitsOf(payload_bytes), entry->units)) {
      return Status(StatusCode::kResourceExhausted,
                    "no host memory is free for " + std::to_string(payload_bytes) +
                        " bytes: all of " + std::to_string(num_units_ * unit_bytes_) +
                        " are in use");
    }
  }
  const Status filled = fill(*entry);
  const std::lock_guard lock(mutex_);
  if (!filled.ok()) {
    FreeUnits(*entry);
    return filled;
  }
  const auto [it, is_new] = entries_.try_emplace(key, entry);
  if (is_new) {
    entry->use = uses_.insert(uses_.end(), key);
  } else {
    FreeUnits(*entry);  // another thread has stored it meanwhile
  }
  return HoldEntry(it->second);
}

HostStore::Held HostStore::Hold(const RecordKey& key) {
  const std::lock_guard lock(mutex_);
  const auto it = entries_.find(key);
  if (it == entries_.end()) return nullptr;
  uses_.splice(uses_.end(), uses_, it->second->use);
  return HoldEntry(it->second);
}

Status HostStore::Read(const RecordKey& key, std::span<const int32_t> tokens,
                       std::span<const iovec> payload) {
  const Held held = Hold(key);
  if (held == nullptr) return Status(StatusCode::kNotFound, "the page is not in host memory");
  DS_CHECK(std::ranges::equal(held->tokens, tokens), "a key is of one run of tokens");
  return ReadHeld(held, payload);
}

Status HostStore::ReadHeld(const Held& held, std::span<const iovec> payload) const {
  DS_CHECK(held->payload_bytes == BytesOf(payload), "a key is of one size");
  return transfer_->ToDevice(Copies(payload, held->units, /*to_host=*/false));
}

std::vector<iovec> HostStore::HostMemory(const Held& held) const { return HostMemory(*held); }

std::vector<iovec> HostStore::HostMemory(const Entry& entry) const {
  std::vector<iovec> parts;
  size_t left = entry.payload_bytes;
  for (const size_t unit : entry.units) {
    parts.push_back({memory_.get() + unit * unit_bytes_, std::min(left, unit_bytes_)});
    left -= parts.back().iov_len;
  }
  return parts;
}

void HostStore::Release(Entry& entry) {
  const std::lock_guard lock(mutex_);
  if (--entry.num_holders == 0 && entry.is_erased) FreeUnits(entry);
}

// REQUIRES: mutex_ is held, here and below.
HostStore::Held HostStore::HoldEntry(const std::shared_ptr<Entry>& entry) {
  ++entry->num_holders;
  return Held(entry.get(), [this, entry](const Entry*) { Release(*entry); });
}

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
      uses_, [&](const RecordKey& key) { return entries_.at(key)->num_holders == 0; });
  if (oldest == uses_.end()) return false;
  Remove(RecordKey(*oldest));
  return true;
}

// The units of an entry that is held become free when it is released.
void HostStore::Remove(const RecordKey& key) {
  const auto it = entries_.find(key);
  if (it == entries_.end()) return;
  Entry& entry = *it->second;
  entry.is_erased = true;
  uses_.erase(entry.use);
  if (entry.num_holders == 0) FreeUnits(entry);
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
