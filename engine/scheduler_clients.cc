// SPDX-License-Identifier: Apache-2.0
// Scheduler, fairness between clients: which client gets room from another, and how many tokens
// each may compute per step.
#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "engine/scheduler.h"
#include "kernels/base/check.h"

namespace diffserve {

// Preempts sequences of clients that hold more than their part, youngest first, if the next client
// has no room although it would hold no more than its own part. False: a sequence should be
// preempted, but a plan is not committed.
bool Scheduler::MakeRoom() {
  const Sequence* const next = queue_.Next();
  const auto num_clients = static_cast<int>(queue_.clients().size());
  if (next == nullptr || num_clients < 2) return true;
  const int64_t pages = options_.num_pages / num_clients;
  const int sequences = std::max(1, max_running_ / num_clients);
  const ClientQueue& client = *next->client;
  const int64_t needed = PagesFor(next->num_tokens() + 1, options_.page_size);
  if (client.num_pages + needed > pages || client.num_running + 1 > sequences) return true;
  const auto has_room = [&] {
    Sequence& head = *queue_.Next();
    return static_cast<int>(running_.size()) < max_running_ && HasRoomFor(head, FindPrefix(head));
  };
  while (!has_room()) {
    Sequence* const victim = PickVictim(client, pages, sequences);
    if (victim == nullptr) return true;
    if (!due_.empty()) return false;
    Preempt(*victim);
  }
  return true;
}

// The youngest sequence of the clients that hold more than `pages` or `sequences`. It must not be
// more urgent than `next`'s first sequence, and without it `next` must still have the next turn.
// nullptr: there is none that may be preempted.
Sequence* Scheduler::PickVictim(const ClientQueue& next, int64_t pages, int sequences) const {
  for (size_t i = running_.size(); i-- > 1;) {  // never the oldest
    Sequence& candidate = *running_[i];
    const ClientQueue& client = *candidate.client;
    const bool holds_more = client.num_pages > pages || client.num_running > sequences;
    const auto left = std::pair(client.num_pages - std::ssize(candidate.pages), client.last_turn);
    if (holds_more && left > std::pair(next.num_pages, next.last_turn) &&
        candidate.level >= next.waiting.front()->level &&
        candidate.preemptions < options_.max_preemptions_per_sequence)
      return &candidate;
  }
  return nullptr;
}

void Scheduler::LiftShares() {
  shared_out_ = false;
  for (const auto& sequence : running_) sequence->share = kUnlimited;
  for (auto& [id, client] : queue_.clients()) client.tokens_left = kUnlimited;
}

// Sets the maximum number of tokens of each running sequence in the next step. The rest of a
// client's share is for its sequences that start.
void Scheduler::ShareOut() {
  LiftShares();
  if (queue_.clients().size() < 2 || !overhead_tokens_) return;
  std::map<ClientQueue*, int64_t> wanted;
  for (const auto& sequence : running_) {
    if (sequence->num_remaining() > 0)
      wanted[sequence->client] += std::min(sequence->num_remaining(),
                                           options_.max_num_batched_tokens);
  }
  Sequence* const next = queue_.Next();
  if (next != nullptr && static_cast<int>(running_.size()) < max_running_) {
    const std::vector<int32_t> hits = FindPrefix(*next);
    if (HasRoomFor(*next, hits)) {
      wanted[next->client] += next->num_tokens() - std::ssize(hits) * options_.page_size;
    }
  }
  if (wanted.size() < 2) return;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const auto& [client, tokens] : wanted) least = std::min(least, tokens);
  const int64_t limit = std::min<int64_t>(least + *overhead_tokens_, kUnlimited);
  for (auto& [id, client] : queue_.clients()) {
    const auto it = wanted.find(&client);
    if (it != wanted.end() && it->second <= limit) continue;
    shared_out_ = true;
    ShareOut(client, static_cast<int>(limit));
  }
}

// Divides `tokens` among the client's running sequences; the one whose last turn is longest ago
// comes first.
void Scheduler::ShareOut(ClientQueue& client, int tokens) {
  std::vector<Sequence*> sequences;
  for (const auto& sequence : running_) {
    if (sequence->client == &client) sequences.push_back(sequence.get());
  }
  std::ranges::stable_sort(sequences, {}, &Sequence::last_turn);
  for (Sequence* sequence : sequences) {
    sequence->share = std::min(sequence->num_remaining(), tokens);
    tokens -= sequence->share;
  }
  client.tokens_left = tokens;
}

// Records a turn even if there was no page for the share. Otherwise the same sequence would get the
// next step's share too, and the client's others would wait for its page.
void Scheduler::TakeTurns() {
  for (const auto& sequence : running_) {
    if (sequence->share > 0) sequence->last_turn = step_;
  }
}

bool Scheduler::NothingIsPlanned() const {
  return std::ranges::all_of(running_, [](const auto& s) { return s->num_planned == 0; });
}

void Scheduler::CheckClients() const {
  struct Held {
    int running = 0;
    int64_t pages = 0;
  };
  std::map<uint64_t, Held> held;
  for (const auto& sequence : running_) {
    Held& of = held[sequence->request.client];
    ++of.running;
    of.pages += std::ssize(sequence->pages);
  }
  for (const auto& [id, client] : queue_.clients()) {
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
