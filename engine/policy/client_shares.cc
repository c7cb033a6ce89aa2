// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/client_shares.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "kernels/process/check.h"

namespace diffserve {
namespace {

// Divides `tokens` among the client's running sequences; the one whose last turn is longest ago
// comes first.
void ShareOutTo(ClientQueue& client, int tokens, ClientShares::Running running) {
  std::vector<Sequence*> sequences;
  for (const auto& sequence : running) {
    if (sequence->client == &client) sequences.push_back(sequence.get());
  }
  std::ranges::stable_sort(sequences, {}, &Sequence::last_turn);
  for (Sequence* sequence : sequences) {
    sequence->share = std::min(sequence->num_remaining(), tokens);
    tokens -= sequence->share;
  }
  client.tokens_left = tokens;
}

}  // namespace

ClientShares::Part ClientShares::PartOf(const WaitingQueue& queue) const {
  const auto num_clients = static_cast<int>(queue.clients().size());
  return {options_.num_pages / num_clients, std::max(1, options_.MaxRunning() / num_clients)};
}

bool ClientShares::IsWithinPart(const Sequence& next, const WaitingQueue& queue) const {
  const Part part = PartOf(queue);
  const ClientQueue& client = *next.client;
  const int64_t needed = PagesFor(next.num_tokens() + 1, options_.page_size);
  return client.num_pages + needed <= part.pages && client.num_running + 1 <= part.sequences;
}

Sequence* ClientShares::VictimFor(const Sequence& next, Running running,
                                  const WaitingQueue& queue) const {
  const Part part = PartOf(queue);
  const std::pair<int64_t, uint64_t> turn(next.client->num_pages, next.client->last_turn);
  for (size_t i = running.size(); i-- > 1;) {  // never the oldest
    Sequence& candidate = *running[i];
    const ClientQueue& client = *candidate.client;
    const bool holds_more = client.num_pages > part.pages || client.num_running > part.sequences;
    const std::pair<int64_t, uint64_t> left(client.num_pages - std::ssize(candidate.pages),
                                            client.last_turn);
    if (holds_more && left > turn && candidate.level >= next.level &&
        candidate.preemptions < options_.max_preemptions_per_sequence)
      return &candidate;
  }
  return nullptr;
}

void ClientShares::Lift(Running running, WaitingQueue& queue) {
  shared_out_ = false;
  for (const auto& sequence : running) sequence->share = Sequence::kUnlimited;
  for (auto& [id, client] : queue.clients()) client.tokens_left = Sequence::kUnlimited;
}

// By client. The next sequence counts if it could start.
std::map<ClientQueue*, int64_t> ClientShares::TokensWanted(Running running,
                                                           const WaitingQueue& queue) const {
  std::map<ClientQueue*, int64_t> wanted;
  for (const auto& sequence : running) {
    if (sequence->num_remaining() > 0)
      wanted[sequence->client] += std::min(sequence->num_remaining(),
                                           options_.max_num_batched_tokens);
  }
  Sequence* const next = queue.Next();
  if (next == nullptr || std::ssize(running) >= options_.MaxRunning()) return wanted;
  const std::vector<int32_t> hits = pages_.FindPrefix(*next);
  if (pages_.HasRoomFor(*next, hits, running))
    wanted[next->client] += next->num_tokens() - std::ssize(hits) * options_.page_size;
  return wanted;
}

void ClientShares::ShareOut(Running running, WaitingQueue& queue,
                            std::optional<int> overhead_tokens) {
  Lift(running, queue);
  if (queue.clients().size() < 2 || !overhead_tokens) return;
  const std::map<ClientQueue*, int64_t> wanted = TokensWanted(running, queue);
  if (wanted.size() < 2) return;
  int64_t fewest = std::numeric_limits<int64_t>::max();
  for (const auto& [client, tokens] : wanted) fewest = std::min(fewest, tokens);
  const int64_t limit = std::min<int64_t>(fewest + *overhead_tokens, Sequence::kUnlimited);
  for (auto& [id, client] : queue.clients()) {
    const auto it = wanted.find(&client);
    if (it != wanted.end() && it->second <= limit) continue;
    shared_out_ = true;
    ShareOutTo(client, static_cast<int>(limit), running);
  }
}

// A sequence has had its turn even if there was no page for its share. Otherwise it would get the
// next step's share too, and the client's others would wait for its page.
void ClientShares::TakeTurns(Running running, uint64_t step) {
  for (const auto& sequence : running) {
    if (sequence->share > 0) sequence->last_turn = step;
  }
}

void ClientShares::CheckInvariants(Running running, const WaitingQueue& queue) {
  struct Held {
    int running = 0;
    int64_t pages = 0;
  };
  std::map<uint64_t, Held> held;
  for (const auto& sequence : running) {
    Held& of = held[sequence->request.client];
    ++of.running;
    of.pages += std::ssize(sequence->pages);
  }
  for (const auto& [id, client] : queue.clients()) {
    const Held of = held[id];
    DS_CHECK(client.num_running == of.running && client.num_pages == of.pages,
             "what a client holds is counted");
    DS_CHECK(of.running > 0 || client.num_loading > 0 || !client.waiting.empty(),
             "a client has something here");
    int64_t tokens = 0;
    for (const auto& sequence : client.waiting) tokens += sequence->num_tokens();
    DS_CHECK(tokens == client.waiting_tokens, "waiting tokens are counted");
    DS_CHECK(std::ranges::is_sorted(client.waiting, {},
                                    [](const auto& s) { return std::pair(s->level, s->arrival); }),
             "a client's requests wait in their order");
    for (const auto& sequence : client.waiting) {
      DS_CHECK(sequence->level <= sequence->request.priority &&
                   sequence->times_passed < WaitingQueue::kPassesMax,
               "what is passed often gets more urgent");
    }
  }
}

}  // namespace diffserve
