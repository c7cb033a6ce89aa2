// SPDX-License-Identifier: Apache-2.0
// QueueState: the engine thread's report of its queue after a step. Other threads estimate from it
// how long a new request would wait. A value.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/step_cost.h"

namespace diffserve {

// One client's share of the queue.
struct ClientWaiting {
  uint64_t client = 0;  // Request::client
  int requests = 0;
  int64_t tokens = 0;
};

struct QueueState {
  std::vector<ClientWaiting> clients;  // sorted by client, each with at least one request
  int running = 0;
  int free_seats = 0;                // sequences that could start in addition to the running ones
  double mean_generated_tokens = 0;  // over requests that have ended lately
  std::optional<StepCost> cost;      // nullopt: no estimate is possible

  ClientWaiting Sum() const;
  const ClientWaiting* Find(uint64_t client) const;  // nullptr: it has no request in the queue
  void Add(uint64_t client, int requests, int64_t tokens);
};

// Estimates the seconds until a request of `client` submitted now would start. The estimate is the
// time to compute the prompts before it. If more requests are before it than can start at once, it
// adds the time for the tokens that those are likely to generate. Clients take turns, so each other
// client counts with at most as many requests as `client` has itself.
double EstimatedWait(const QueueState& queue, uint64_t client);

}  // namespace diffserve
