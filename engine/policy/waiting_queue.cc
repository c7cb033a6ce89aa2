// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/waiting_queue.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "kernels/process/check.h"

namespace diffserve {
namespace {

std::pair<int64_t, uint64_t> OrderOf(const std::unique_ptr<Sequence>& waiting) {
  return {waiting->level, waiting->arrival};
}

void CountOut(std::map<int64_t, int>& num_at_level, int64_t level) {
  const auto it = num_at_level.find(level);
  if (--it->second == 0) num_at_level.erase(it);
}

}  // namespace

ClientQueue& WaitingQueue::Enter(uint64_t client) {
  ClientQueue& entered = clients_[client];
  entered.id = client;
  return entered;
}

void WaitingQueue::Leave(ClientQueue& client) {
  if (client.waiting.empty() && client.num_running == 0 && client.num_loading == 0)
    clients_.erase(client.id);
}

void WaitingQueue::Put(std::unique_ptr<Sequence> sequence) {
  ClientQueue& client = *sequence->client;
  client.waiting_tokens += sequence->num_tokens();
  ++num_waiting_;
  ++num_at_level_[sequence->level];
  const auto position = std::ranges::upper_bound(client.waiting, OrderOf(sequence), {}, OrderOf);
  client.waiting.insert(position, std::move(sequence));
}

ClientQueue* WaitingQueue::NextClient() const {
  const ClientQueue* next = nullptr;
  for (const auto& [id, client] : clients_) {
    if (client.waiting.empty() || client.passed_over) continue;
    const auto rank = [](const ClientQueue& of) {
      const Sequence& first = *of.waiting.front();
      return std::tuple(first.level, of.num_pages, of.last_turn, first.arrival);
    };
    if (next == nullptr || rank(client) < rank(*next)) next = &client;
  }
  return const_cast<ClientQueue*>(next);
}

Sequence* WaitingQueue::Next() const {
  const ClientQueue* const client = NextClient();
  return client == nullptr ? nullptr : client->waiting.front().get();
}

std::unique_ptr<Sequence> WaitingQueue::TakeNext() {
  ClientQueue& client = *NextClient();
  client.last_turn = ++turns_;
  std::unique_ptr<Sequence> taken = Remove(*client.waiting.front());
  Pass(taken->level);
  return taken;
}

// Counts the start of a sequence of this level as a pass for all that wait at higher levels.
void WaitingQueue::Pass(int64_t level) {
  if (num_at_level_.empty() || num_at_level_.rbegin()->first <= level) return;
  for (auto& [id, client] : clients_) {
    bool any_fell = false;
    for (const auto& sequence : client.waiting) {
      if (sequence->level <= level || ++sequence->times_passed < kPassesMax) continue;
      CountOut(num_at_level_, sequence->level);
      sequence->level -= std::max<int64_t>(1, (sequence->level - level) / 2);
      sequence->times_passed = 0;
      ++num_at_level_[sequence->level];
      any_fell = true;
    }
    if (any_fell) std::ranges::sort(client.waiting, {}, OrderOf);
  }
}

std::unique_ptr<Sequence> WaitingQueue::Remove(const Sequence& sequence) {
  ClientQueue& client = *sequence.client;
  const auto it = std::ranges::find(client.waiting, &sequence,
                                    [](const auto& waiting) { return waiting.get(); });
  DS_CHECK(it != client.waiting.end(), "a sequence runs or waits");
  client.waiting_tokens -= sequence.num_tokens();
  --num_waiting_;
  CountOut(num_at_level_, sequence.level);
  std::unique_ptr<Sequence> removed = std::move(*it);
  client.waiting.erase(it);
  return removed;
}

std::vector<const Sequence*> WaitingQueue::ByArrival() const {
  std::vector<const Sequence*> sequences;
  for (const auto& [id, client] : clients_) {
    for (const auto& sequence : client.waiting) sequences.push_back(sequence.get());
  }
  std::ranges::sort(sequences, {}, &Sequence::arrival);
  return sequences;
}

std::vector<ClientShare> WaitingQueue::Counts() const {
  std::vector<ClientShare> counts;
  for (const auto& [id, client] : clients_) {
    counts.push_back({.client = id,
                      .running = client.num_running,
                      .requests = static_cast<int>(client.waiting.size()) + client.num_loading,
                      .tokens = client.waiting_tokens});
  }
  return counts;
}

}  // namespace diffserve
