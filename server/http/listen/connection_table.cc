// SPDX-License-Identifier: Apache-2.0
#include "server/http/listen/connection_table.h"

#include <utility>

#include "server/http/peer_address.h"

namespace diffserve {
namespace {

constexpr int kKeptForOthers = 8;  // an eighth of what is free

}  // namespace

ConnectionTable::Admission ConnectionTable::Admit(const std::string& network) {
  std::lock_guard lock(mutex_);
  Admission admission;
  const auto found = networks_.find(network);
  const int own = found == networks_.end() ? 0 : found->second.taken;
  const int free = max_ - (taken_ - own);
  const int share = network == kUnixNetwork ? free : free - free / kKeptForOthers;
  if (own > 0 && own >= share) {
    admission.has_ended_other = EndFirst(found->second.idle);
    const bool has_others = taken_ > own || share < free;  // or places that are kept for them
    admission.is_share_used = !admission.has_ended_other && has_others;
    if (admission.is_share_used) return admission;
  }
  if (taken_ >= max_ && !admission.has_ended_other) {
    admission.has_ended_other = EndFirst(idle_);
    if (!admission.has_ended_other) return admission;
  }
  Network& joined = networks_[network];
  admission.entry.reset(new Entry(*this, joined, network));
  ++joined.entries;
  ++joined.taken;
  ++taken_;
  return admission;
}

// False: none is idle. REQUIRES: mutex_ is held.
bool ConnectionTable::EndFirst(Entries& idle) {
  if (idle.empty()) return false;
  Entry& entry = *idle.front();
  Release(entry);
  entry.end_();
  return true;
}

// REQUIRES: mutex_ is held.
void ConnectionTable::Release(Entry& entry) {
  if (std::exchange(entry.is_idle_, false)) {
    idle_.erase(entry.in_all_);
    entry.network_.idle.erase(entry.in_network_);
  }
  if (!std::exchange(entry.has_place_, false)) return;
  --entry.network_.taken;
  --taken_;
}

ConnectionTable::Entry::~Entry() {
  std::lock_guard lock(table_.mutex_);
  table_.Release(*this);
  if (--network_.entries == 0) table_.networks_.erase(name_);
}

void ConnectionTable::Entry::SetIdle(bool is_idle) {
  std::lock_guard lock(table_.mutex_);
  table_.Release(*this);
  has_place_ = true;
  ++network_.taken;
  ++table_.taken_;
  is_idle_ = is_idle;
  if (!is_idle) return;
  in_all_ = table_.idle_.insert(table_.idle_.end(), this);
  in_network_ = network_.idle.insert(network_.idle.end(), this);
}

bool ConnectionTable::Entry::HasLostPlace() const {
  std::lock_guard lock(table_.mutex_);
  return !has_place_;
}

}  // namespace diffserve
