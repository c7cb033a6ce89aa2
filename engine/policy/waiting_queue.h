// SPDX-License-Identifier: Apache-2.0
// WaitingQueue: the sequences that wait, and which one starts next. Each client has its own queue,
// ordered by level and then by arrival. The next client is the one whose first sequence has the
// lowest level. Ties go to the client whose running sequences hold the fewest pages, then to the
// one whose last turn is longest ago. So a client with a thousand requests delays another client's
// first request of the same level by one turn, not by a thousand. Owned by the Scheduler; numbers
// only.
//
// A sequence's level starts as its request's priority. It falls while the sequence waits: whenever
// kPassesMax sequences of lower levels have started, it moves half of the way (at least 1) towards
// the level of the last of them. So with any priorities a sequence starts after at most about 33 *
// kPassesMax more urgent ones, and after kPassesMax if their priority is only one lower. If all
// sequences have one priority, waiting changes no level.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "engine/policy/queue_state.h"
#include "engine/policy/sequence.h"

namespace diffserve {

// A client with at least one sequence that runs, waits or is being loaded.
struct ClientQueue {
  uint64_t id = 0;                                // Request::client
  std::deque<std::unique_ptr<Sequence>> waiting;  // by level, then arrival
  int64_t waiting_tokens = 0;
  int num_running = 0;
  int num_loading = 0;     // sequences outside the queue while their prefix is loaded
  uint64_t last_turn = 0;  // 0: it has had no turn
  // State of the plan being built:
  int64_t num_pages = 0;  // held by its running sequences
  int tokens_left = std::numeric_limits<int>::max();
  bool passed_over = false;
};

class WaitingQueue {
 public:
  static constexpr int kPassesMax = 64;

  // Returns the queue of a client, for one more sequence. It exists until Leave finds it without
  // sequences.
  ClientQueue& Enter(uint64_t client);
  void Leave(ClientQueue& client);

  // Inserts the sequence by its level and arrival. REQUIRES: sequence->client is set.
  void Put(std::unique_ptr<Sequence> sequence);
  // The next sequence to start: the first one of its client. nullptr if no sequence waits, or if
  // all clients with waiting sequences are passed over.
  Sequence* Next() const;
  // Removes Next() from the queue and counts a pass for each less urgent sequence.
  std::unique_ptr<Sequence> TakeNext();
  std::unique_ptr<Sequence> Remove(const Sequence& sequence);

  std::map<uint64_t, ClientQueue>& clients() { return clients_; }
  const std::map<uint64_t, ClientQueue>& clients() const { return clients_; }
  int num_waiting() const { return num_waiting_; }
  std::vector<const Sequence*> ByArrival() const;
  std::vector<ClientShare> Counts() const;

 private:
  ClientQueue* NextClient() const;
  void Pass(int64_t level);

  std::map<uint64_t, ClientQueue> clients_;
  std::map<int64_t, int> num_at_level_;  // level -> number of waiting sequences; no zeros
  int num_waiting_ = 0;
  uint64_t turns_ = 0;
};

}  // namespace diffserve
