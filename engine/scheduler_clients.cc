// The Scheduler's part that is fair between clients: who gets room from whom, and what each may
// compute in a step.
#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "engine/scheduler.h"
#include "kernels/base/check.h"

namespace diffserve {

// If the next client has no room although it would hold no more than its part, sequences of those
// that hold more than theirs are preempted, youngest first. False: somebody is to be, and a plan is
// under way.
bool Scheduler::MakeRoom() {
  const Sequence* const next = line_.Next();
  const auto num_clients = static_cast<int>(line_.clients().size());
  if (next == nullptr || num_clients < 2) return true;
  const int64_t pages = options_.num_pages / num_clients;
  const int sequences = std::max(1, max_running_ / num_clients);
  const Client& client = *next->client;
  const int64_t needed = PagesFor(next->num_tokens() + 1, options_.page_size);
  if (client.num_pages + needed > pages || client.num_running + 1 > sequences) return true;
  const auto has_room = [&] {
    Sequence& head = *line_.Next();
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

// The youngest sequence of those clients that hold more than so much, if it is still `next`'s turn
// without it, and it is not more urgent. nullptr: there is none that may be preempted.
Sequence* Scheduler::PickVictim(const Client& next, int64_t pages, int sequences) const {
  for (size_t i = running_.size(); i-- > 1;) {  // never the oldest
    Sequence& candidate = *running_[i];
    const Client& client = *candidate.client;
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
  for (auto& [id, client] : line_.clients()) client.tokens_left = kUnlimited;
}

// Sets what each running sequence may compute in the next step at most, and what is left of its
// client's share for those that start.
void Scheduler::ShareOut() {
  LiftShares();
  if (line_.clients().size() < 2 || !overhead_tokens_) return;
  std::map<Client*, int64_t> wanted;
  for (const auto& sequence : running_) {
    if (sequence->num_remaining() > 0)
      wanted[sequence->client] += std::min(sequence->num_remaining(),
                                           options_.max_num_batched_tokens);
  }
  Sequence* const next = line_.Next();
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
  for (auto& [id, client] : line_.clients()) {
    const auto it = wanted.find(&client);
    if (it != wanted.end() && it->second <= limit) continue;
    shared_out_ = true;
    ShareOut(client, static_cast<int>(limit));
  }
}

// The client's running sequences take turns: those whose last turn was longest ago come first.
void Scheduler::ShareOut(Client& client, int tokens) {
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

// A share for which there was no page was a turn all the same: it would else be the same
// sequence's in the next step, and the client's others would wait for its page.
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
  for (const auto& [id, client] : line_.clients()) {
    const Held of = held[id];
    DS_CHECK(client.num_running == of.running && client.num_pages == of.pages,
             "what a client holds is counted");
    DS_CHECK(of.running > 0 || !client.waiting.empty(), "a client has something here");
    int64_t tokens = 0;
    for (const auto& sequence : client.waiting) tokens += sequence->num_tokens();
    DS_CHECK(tokens == client.waiting_tokens, "waiting tokens are counted");
    DS_CHECK(std::ranges::is_sorted(client.waiting, {},
                                    [](const auto& s) { return std::pair(s->level, s->arrival); }),
             "a client's requests wait in their order");
    for (const auto& sequence : client.waiting) {
      DS_CHECK(sequence->level <= sequence->request.priority &&
                   sequence->times_passed < WaitingLine::kPassesMax,
               "what is passed often gets more urgent");
    }
  }
}

}  // namespace diffserve
