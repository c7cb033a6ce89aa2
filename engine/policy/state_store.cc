// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/state_store.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/process/check.h"

namespace diffserve {

StateStore::StateStore(const EngineOptions& options) : options_(options) {
  if (options.num_state_slots == 0) return;
  DS_CHECK(options.num_state_slots >= options.MaxRunning() &&
               (options.num_window_pages == 0 ||
                options.num_window_pages >= options.WindowPagesMin(options.MaxRunning())),
           "slots and window pages for all that may run");
  DS_CHECK(options.state_snapshot_interval % options.page_size == 0,
           "snapshots are taken where pages end");
  slots_.emplace(options.num_state_slots);
  if (options.num_window_pages > 0) window_pages_.emplace(options.num_window_pages);
  snapshots_.resize(static_cast<size_t>(options.num_state_slots));
  by_page_.assign(static_cast<size_t>(options.num_pages), -1);
}

void StateStore::BeginPlan(Running running) {
  if (empty()) return;
  for (int32_t slot : std::exchange(read_by_plan_, {})) slots_->Release(slot, false);
  for (Snapshot& snapshot : snapshots_) snapshot.in_this_plan = false;
  for (const auto& sequence : running) Trim(*sequence);
}

int StateStore::FirstSeen(int position) const {
  return std::max(0, position + 1 - options_.window) / options_.page_size;
}

void StateStore::Trim(Sequence& sequence) {
  HeldState& held = sequence.state;
  const int first = std::min(FirstSeen(sequence.num_computed),
                             static_cast<int>(held.window_pages.size()));
  for (; held.first_window_page < first; ++held.first_window_page) {
    int32_t& page = held.window_pages[static_cast<size_t>(held.first_window_page)];
    window_pages_->Release(std::exchange(page, -1), false);
  }
}

void StateStore::Begin(Sequence& sequence, int32_t page) {
  if (empty()) return;
  HeldState& held = sequence.state;
  held.last_snapshot = sequence.num_computed;
  if (page >= 0) {
    const int32_t slot = by_page_[static_cast<size_t>(page)];
    Snapshot& snapshot = snapshots_[static_cast<size_t>(slot)];
    snapshot.worth = worth_of_dropped_ + snapshot.saves;
    slots_->Share(slot);
    held.from = slot;
    if (window_pages_) {
      for (int32_t shared : snapshot.window_pages) window_pages_->Share(shared);
      const int end = sequence.num_computed / options_.page_size;
      held.first_window_page = end - static_cast<int>(snapshot.window_pages.size());
      held.window_pages.assign(static_cast<size_t>(held.first_window_page), -1);
      held.window_pages.insert(held.window_pages.end(), snapshot.window_pages.begin(),
                               snapshot.window_pages.end());
    }
    ++counters_.resumed;
  }
  const std::optional<PagePool::Grant> own = slots_->Allocate();
  DS_CHECK(own.has_value(), "each running sequence has a slot");
  held.slot = own->page;
  if (held.from < 0) held.from = held.slot;
  ++num_running_;
}

void StateStore::End(Sequence& sequence) {
  if (empty()) return;
  HeldState held = std::exchange(sequence.state, {});
  if (held.from != held.slot) slots_->Release(held.from, false);
  slots_->Release(held.slot, false);
  for (int32_t slot : held.row_slots) slots_->Release(slot, false);
  for (int32_t page : held.window_pages) {
    if (page >= 0) window_pages_->Release(page, false);
  }
  for (const auto& [position, slot, id] : held.pending) {
    Snapshot& snapshot = snapshots_[static_cast<size_t>(slot)];
    if (snapshot.id == id) Drop(snapshot);
  }
  --num_running_;
}

StateSlotUse StateStore::PlanStep(Sequence& sequence) {
  if (empty()) return {};
  HeldState& held = sequence.state;
  const int end = sequence.num_computed + sequence.num_planned;
  while (window_pages_ && std::ssize(held.window_pages) < PagesFor(end, options_.page_size))
    held.window_pages.push_back(TakeWindowPage());
  StateSlotUse use = {held.from, held.slot};
  if (held.from != held.slot) read_by_plan_.push_back(std::exchange(held.from, held.slot));
  TakeSnapshots(sequence, use);
  AddRows(sequence, use);
  return use;
}

int StateStore::TakeRows(Sequence& sequence, int count) {
  if (empty()) return count;
  std::vector<int32_t>& rows = sequence.state.row_slots;
  while (std::ssize(rows) < count) {
    const int32_t slot = TakeSnapshotSlot(-1);
    if (slot < 0) break;
    rows.push_back(slot);
  }
  return static_cast<int>(rows.size());
}

void StateStore::TrimRows(Sequence& sequence, int count) {
  std::vector<int32_t>& rows = sequence.state.row_slots;
  for (; std::ssize(rows) > count; rows.pop_back()) slots_->Release(rows.back(), false);
}

// A snapshot before the first proposed token is that row's state too.
void StateStore::AddRows(Sequence& sequence, StateSlotUse& use) {
  std::vector<int32_t>& rows = sequence.state.row_slots;
  const int known = sequence.num_planned - static_cast<int>(rows.size());
  for (int row = 0; row < static_cast<int>(rows.size()); ++row) {
    int32_t& slot = rows[static_cast<size_t>(row)];
    if (!use.snapshots.empty() && use.snapshots.back().num_tokens == known + row) {
      slots_->Release(std::exchange(slot, use.snapshots.back().slot), false);
      slots_->Share(slot);
    } else {
      use.snapshots.push_back({known + row, slot});
    }
  }
}

void StateStore::TakeBack(Sequence& sequence, int rejected) {
  if (empty()) return;
  HeldState& held = sequence.state;
  if (rejected > 0) {
    TrimRows(sequence, std::ssize(held.row_slots) - rejected + 1);
    held.from = held.row_slots.back();
    held.row_slots.pop_back();
  }
  TrimRows(sequence, 0);
  const int64_t num_pages = PagesFor(sequence.num_computed, options_.page_size);
  for (; std::ssize(held.window_pages) > num_pages; held.window_pages.pop_back()) {
    if (held.window_pages.back() >= 0) window_pages_->Release(held.window_pages.back(), false);
  }
}

// A snapshot at the prompt's end excludes its last token, because a sequence with the same prompt
// computes that one itself.
int StateStore::PromptEnd(const Sequence& sequence) const {
  return (sequence.num_prompt_tokens() - 1) / options_.page_size * options_.page_size;
}

int StateStore::NextSnapshot(const Sequence& sequence, int after) const {
  constexpr int kNone = std::numeric_limits<int>::max();
  const int interval = options_.state_snapshot_interval, prompt_end = PromptEnd(sequence);
  if (!options_.enable_prefix_caching || interval == 0) return kNone;
  const int64_t next = (int64_t{after} / interval + 1) * interval;
  const int at_interval = static_cast<int>(std::min<int64_t>(next, kNone));
  return prompt_end > after ? std::min(prompt_end, at_interval) : at_interval;
}

// If slots are short, the earliest snapshots are skipped, except the one at the prompt's end. None
// is taken after a proposed token.
void StateStore::TakeSnapshots(Sequence& sequence, StateSlotUse& use) {
  const int num_proposed = static_cast<int>(sequence.state.row_slots.size());
  const int end = sequence.num_computed + sequence.num_planned - num_proposed;
  std::vector<int> positions;
  for (int at = NextSnapshot(sequence, sequence.num_computed); at <= end;
       at = NextSnapshot(sequence, at))
    positions.push_back(at);
  std::vector<int32_t> slots;
  while (slots.size() < positions.size()) {
    const int32_t slot = TakeSnapshotSlot(use.from);
    if (slot < 0) break;
    slots.push_back(slot);
  }
  if (slots.empty()) return;
  for (auto at = positions.begin(); positions.size() > slots.size();)
    at = *at == PromptEnd(sequence) ? at + 1 : positions.erase(at);
  for (size_t i = 0; i < slots.size(); ++i) {
    Keep(sequence, positions[i], slots[i]);
    use.snapshots.push_back({positions[i] - sequence.num_computed, slots[i]});
  }
  if (positions.back() < end || num_proposed > 0) return;
  sequence.state.from = slots.back();
  slots_->Share(slots.back());
}

// Returns a slot for a snapshot of a step that reads slot `read`; -1 if none is available.
int32_t StateStore::TakeSnapshotSlot(int32_t read) {
  const int others = num_slots() - num_free_slots() - num_running_;
  if (others < num_slots() - options_.MaxRunning()) return slots_->Allocate()->page;
  Snapshot* const least = MinWorth([&](const Snapshot& snapshot) {
    const auto slot = static_cast<int32_t>(&snapshot - snapshots_.data());
    const int readers = slots_->holders(slot) - 1;
    return !snapshot.in_this_plan && readers <= (slot == read ? 1 : 0);
  });
  if (least == nullptr) return -1;
  const auto slot = static_cast<int32_t>(least - snapshots_.data());
  Evict(*least);
  if (slot != read) return slots_->Allocate()->page;
  std::erase(read_by_plan_, read);
  return read;
}

void StateStore::Keep(Sequence& sequence, int position, int32_t slot) {
  HeldState& held = sequence.state;
  Snapshot& snapshot = snapshots_[static_cast<size_t>(slot)];
  snapshot = {.id = ++last_id_, .in_this_plan = true};
  snapshot.saves = position - std::exchange(held.last_snapshot, position);
  snapshot.worth = worth_of_dropped_ + snapshot.saves;
  ++num_snapshots_;
  ++counters_.taken;
  if (window_pages_) {
    snapshot.window_pages.assign(held.window_pages.begin() + FirstSeen(position),
                                 held.window_pages.begin() + position / options_.page_size);
    for (int32_t page : snapshot.window_pages) window_pages_->Share(page);
  }
  held.pending.push_back({position, slot, snapshot.id});
}

int32_t StateStore::TakeWindowPage() {
  std::optional<PagePool::Grant> grant;
  while (!(grant = window_pages_->Allocate())) {
    Snapshot* const least = MinWorth([](const Snapshot&) { return true; });
    DS_CHECK(least != nullptr, "without snapshots there are window pages for all that runs");
    Evict(*least);
  }
  return grant->page;
}

template <typename Filter>
StateStore::Snapshot* StateStore::MinWorth(const Filter& may_go) {
  Snapshot* least = nullptr;
  for (Snapshot& snapshot : snapshots_) {
    if (snapshot.id == 0 || !may_go(snapshot)) continue;
    if (least == nullptr ||
        std::pair(snapshot.worth, snapshot.id) < std::pair(least->worth, least->id))
      least = &snapshot;
  }
  return least;
}

void StateStore::Evict(Snapshot& snapshot) {
  worth_of_dropped_ = std::max(worth_of_dropped_, snapshot.worth);
  ++counters_.evicted;
  Drop(snapshot);
}

// The slot of a snapshot taken in this plan becomes free with the next plan, because this plan's
// step still writes it.
void StateStore::Drop(Snapshot& snapshot) {
  const auto slot = static_cast<int32_t>(&snapshot - snapshots_.data());
  for (int32_t page : snapshot.window_pages) window_pages_->Release(page, false);
  if (snapshot.page >= 0) by_page_[static_cast<size_t>(snapshot.page)] = -1;
  if (snapshot.in_this_plan) {
    read_by_plan_.push_back(slot);
  } else {
    slots_->Release(slot, false);
  }
  snapshot = {};
  --num_snapshots_;
}

void StateStore::Commit(Sequence& sequence, const PrefixIndex& index) {
  std::vector<HeldState::Pending>& pending = sequence.state.pending;
  const auto behind = std::ranges::find_if(
      pending, [&](const auto& taken) { return taken.position > sequence.num_committed; });
  for (auto taken = pending.begin(); taken != behind; ++taken) {
    Snapshot& snapshot = snapshots_[static_cast<size_t>(taken->slot)];
    if (snapshot.id != taken->id) continue;  // evicted
    const int last = taken->position / options_.page_size - 1;
    const int32_t page = last < sequence.num_indexed_pages
                             ? sequence.pages[static_cast<size_t>(last)]
                             : -1;
    if (page < 0 || !index.Contains(page) || HasSnapshot(page)) {
      Drop(snapshot);
      continue;
    }
    snapshot.page = page;
    by_page_[static_cast<size_t>(page)] = taken->slot;
  }
  pending.erase(pending.begin(), behind);
}

void StateStore::Forget(int32_t page) {
  if (empty() || !HasSnapshot(page)) return;
  Drop(snapshots_[static_cast<size_t>(by_page_[static_cast<size_t>(page)])]);
}

bool StateStore::HasRoomToHold(int64_t window_pages) const {
  return !window_pages_ || num_held_window_pages_ + window_pages <=
                               num_window_pages() - options_.WindowPagesMin(options_.MaxRunning());
}

std::optional<SnapshotMemory> StateStore::Hold(int32_t page) {
  const int32_t slot = by_page_[static_cast<size_t>(page)];
  const std::vector<int32_t>& window_pages = snapshots_[static_cast<size_t>(slot)].window_pages;
  if (!HasRoomToHold(std::ssize(window_pages))) return std::nullopt;
  slots_->Share(slot);
  for (int32_t shared : window_pages) window_pages_->Share(shared);
  num_held_window_pages_ += std::ssize(window_pages);
  return SnapshotMemory{slot, window_pages};
}

std::optional<SnapshotMemory> StateStore::Allocate(int position) {
  const int num_pages = window_pages_ ? position / options_.page_size - FirstSeen(position) : 0;
  if (!HasRoomToHold(num_pages)) return std::nullopt;
  SnapshotMemory memory = {.slot = TakeSnapshotSlot(-1)};
  if (memory.slot < 0) return std::nullopt;
  num_held_window_pages_ += num_pages;
  while (std::ssize(memory.window_pages) < num_pages)
    memory.window_pages.push_back(TakeWindowPage());
  return memory;
}

void StateStore::Adopt(SnapshotMemory memory, int32_t page, int saves) {
  if (HasSnapshot(page)) return Release(memory);
  num_held_window_pages_ -= std::ssize(memory.window_pages);
  snapshots_[static_cast<size_t>(memory.slot)] = {.id = ++last_id_,
                                                  .page = page,
                                                  .saves = saves,
                                                  .worth = worth_of_dropped_ + saves,
                                                  .window_pages = std::move(memory.window_pages)};
  by_page_[static_cast<size_t>(page)] = memory.slot;
  ++num_snapshots_;
}

void StateStore::Release(const SnapshotMemory& memory) {
  num_held_window_pages_ -= std::ssize(memory.window_pages);
  slots_->Release(memory.slot, false);
  for (int32_t page : memory.window_pages) window_pages_->Release(page, false);
}

int StateStore::NumWindowPagesOf(Running running) const {
  std::vector<bool> used(static_cast<size_t>(num_window_pages()));
  for (const auto& sequence : running) {
    for (int32_t page : sequence->state.window_pages) {
      if (page >= 0) used[static_cast<size_t>(page)] = true;
    }
  }
  return static_cast<int>(std::ranges::count(used, true));
}

void StateStore::CheckInvariants(Running running, const PrefixIndex& index,
                                 std::span<const SnapshotMemory* const> transfers) const {
  if (empty()) return;
  slots_->CheckInvariants();
  DS_CHECK(num_running_ == std::ssize(running), "every running sequence holds a state");
  std::vector<int> slot_holders(static_cast<size_t>(num_slots()), 0);
  std::vector<int> page_holders(static_cast<size_t>(num_window_pages()), 0);
  for (int32_t slot : read_by_plan_) ++slot_holders[static_cast<size_t>(slot)];
  int64_t num_held = 0;
  for (const SnapshotMemory* memory : transfers) {
    ++slot_holders[static_cast<size_t>(memory->slot)];
    for (int32_t page : memory->window_pages) ++page_holders[static_cast<size_t>(page)];
    num_held += std::ssize(memory->window_pages);
  }
  DS_CHECK(num_held == num_held_window_pages_, "the window pages that transfers hold are counted");
  for (const auto& sequence : running) {
    const HeldState& held = sequence->state;
    ++slot_holders[static_cast<size_t>(held.slot)];
    if (held.from != held.slot) ++slot_holders[static_cast<size_t>(held.from)];
    for (int32_t slot : held.row_slots) ++slot_holders[static_cast<size_t>(slot)];
    for (int32_t page : held.window_pages) {
      if (page >= 0) ++page_holders[static_cast<size_t>(page)];
    }
  }
  int count = 0;
  for (size_t slot = 0; slot < snapshots_.size(); ++slot) {
    const Snapshot& snapshot = snapshots_[slot];
    if (snapshot.id == 0) continue;
    ++count;
    ++slot_holders[slot];
    for (int32_t page : snapshot.window_pages) ++page_holders[static_cast<size_t>(page)];
    if (snapshot.page < 0) continue;
    DS_CHECK(index.Contains(snapshot.page), "a snapshot hangs on an indexed page");
    DS_CHECK(by_page_[static_cast<size_t>(snapshot.page)] == static_cast<int32_t>(slot),
             "a page knows its snapshot");
  }
  DS_CHECK(count == num_snapshots_, "snapshots are counted");
  for (size_t slot = 0; slot < slot_holders.size(); ++slot) {
    DS_CHECK(slots_->holders(static_cast<int32_t>(slot)) == slot_holders[slot],
             "a slot has as many holders as list it");
  }
  for (size_t page = 0; page < page_holders.size(); ++page) {
    DS_CHECK(window_pages_->holders(static_cast<int32_t>(page)) == page_holders[page],
             "a window page has as many holders as list it");
  }
}

}  // namespace diffserve
