#include "engine/waiting_line.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "kernels/base/check.h"

namespace diffserve {

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
  const auto arrival = [](const auto& waiting) { return waiting->arrival; };
  const auto place = std::ranges::upper_bound(client.waiting, sequence->arrival, {}, arrival);
  client.waiting.insert(place, std::move(sequence));
}

Client* WaitingLine::NextClient() const {
  const Client* next = nullptr;
  for (const auto& [id, client] : clients_) {
    if (client.waiting.empty() || client.passed_over) continue;
    const auto rank = [](const Client& of) {
      return std::tuple(of.num_pages, of.last_turn, of.waiting.front()->arrival);
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
  return Remove(*client.waiting.front());
}

std::unique_ptr<Sequence> WaitingLine::Remove(const Sequence& sequence) {
  Client& client = *sequence.client;
  const auto it = std::ranges::find(client.waiting, &sequence,
                                    [](const auto& waiting) { return waiting.get(); });
  DS_CHECK(it != client.waiting.end(), "a sequence runs or waits");
  client.waiting_tokens -= sequence.num_tokens();
  --num_waiting_;
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
