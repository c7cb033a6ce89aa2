// WaitingLine: the sequences that wait, a queue for each client by level and then in order of
// arrival, and whose turn it is: of the clients with something waiting, that of the one whose first
// sequence has the lowest level; among equals, of the one whose running sequences hold the fewest
// pages, then of the one whose turn was longest ago. So a client with a thousand requests delays
// another's first one of the same level by a turn, not by a thousand. Owned by the Scheduler;
// numbers only.
//
// A sequence's level is its request's priority to begin with. Of what waits while kPassesMax
// sequences of lower levels start, the level falls half of the way (at least 1) to that of the last
// one. So whatever priorities others have, a sequence starts after some 33 * kPassesMax more urgent
// ones at most, after kPassesMax those of the next priority; and where all have one priority, no
// waiting changes it.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "engine/line_state.h"
#include "engine/sequence.h"

namespace diffserve {

// A client with at least one sequence that runs or waits.
struct Client {
  uint64_t id = 0;                                // Request::client
  std::deque<std::unique_ptr<Sequence>> waiting;  // by level, then arrival
  int64_t waiting_tokens = 0;
  int num_running = 0;
  uint64_t last_turn = 0;  // 0: it has had none
  // Of the plan under construction.
  int64_t num_pages = 0;  // that its running sequences hold
  int tokens_left = std::numeric_limits<int>::max();
  bool passed_over = false;
};

class WaitingLine {
 public:
  static constexpr int kPassesMax = 64;

  // The sequence's client; it lives until Leave says that nothing of it is left.
  Client& Enter(uint64_t client);
  void Leave(Client& client);

  // Puts it where its level and arrival are. REQUIRES: sequence->client is set.
  void Put(std::unique_ptr<Sequence> sequence);
  // The sequence whose turn it is: the first one of its client. nullptr: nobody waits, or all who
  // do are passed over.
  Sequence* Next() const;
  // Next()'s turn has come: it waits no more, and it has passed those that are less urgent.
  std::unique_ptr<Sequence> TakeNext();
  std::unique_ptr<Sequence> Remove(const Sequence& sequence);

  std::map<uint64_t, Client>& clients() { return clients_; }
  const std::map<uint64_t, Client>& clients() const { return clients_; }
  int num_waiting() const { return num_waiting_; }
  std::vector<const Sequence*> ByArrival() const;
  std::vector<ClientWaiting> Counts() const;

 private:
  Client* NextClient() const;
  void Pass(int64_t level);

  std::map<uint64_t, Client> clients_;
  std::map<int64_t, int> num_at_level_;  // that wait; no zeros
  int num_waiting_ = 0;
  uint64_t turns_ = 0;
};

}  // namespace diffserve
