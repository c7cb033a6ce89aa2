#include "engine/waiting_line.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "kernels/base/check.h"

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

Client& WaitingLine::Enter(uint64_t client) {
  Client& entered = clients_[client];
  entered.id = client;
  return entered;
}

void WaitingLine::Leave(Client& client) {
  if (client.waiting.empty() && client.num_running == 0) clients_.erase(client.id);
}

void WaitingLine::Put(std::unique_ptr<Sequence> sequence) {
  Client& client = *sequence->client;
  client.waiting_tokens += sequence->num_tokens();
  ++num_waiting_;
  ++num_at_level_[sequence->level];
  const auto place = std::ranges::upper_bound(client.waiting, OrderOf(sequence), {}, OrderOf);
  client.waiting.insert(place, std::move(sequence));
}

Client* WaitingLine::NextClient() const {
  const Client* next = nullptr;
  for (const auto& [id, client] : clients_) {
    if (client.waiting.empty() || client.passed_over) continue;
    const auto rank = [](const Client& of) {
      const Sequence& first = *of.waiting.front();
      return std::tuple(first.level, of.num_pages, of.last_turn, first.arrival);
    };
    if (next == nullptr || rank(client) < rank(*next)) next = &client;
  }
  return const_cast<Client*>(next);
}

Sequence* WaitingLine::Next() const {
  const Client* const client = NextClient();
  return client == nullptr ? nullptr : client->waiting.front().get();
}

std::unique_ptr<Sequence> WaitingLine::TakeNext() {
  Client& client = *NextClient();
  client.last_turn = ++turns_;
  std::unique_ptr<Sequence> taken = Remove(*client.waiting.front());
  Pass(taken->level);
  return taken;
}

// A sequence of this level starts, and so passes all that wait at higher ones.
void WaitingLine::Pass(int64_t level) {
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

std::unique_ptr<Sequence> WaitingLine::Remove(const Sequence& sequence) {
  Client& client = *sequence.client;
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

std::vector<const Sequence*> WaitingLine::ByArrival() const {
  std::vector<const Sequence*> sequences;
  for (const auto& [id, client] : clients_) {
    for (const auto& sequence : client.waiting) sequences.push_back(sequence.get());
  }
  std::ranges::sort(sequences, {}, &Sequence::arrival);
  return sequences;
}

std::vector<ClientWaiting> WaitingLine::Counts() const {
  std::vector<ClientWaiting> counts;
  for (const auto& [id, client] : clients_) {
    if (!client.waiting.empty())
      counts.push_back({id, static_cast<int>(client.waiting.size()), client.waiting_tokens});
  }
  return counts;
}

}  // namespace diffserve
