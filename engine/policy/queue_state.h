// SPDX-License-Identifier: Apache-2.0
// QueueState: the engine thread's report of its queue after a step. Other threads estimate from it
// how long a new request would wait. A value.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/policy/seat_forecast.h"
#include "engine/policy/step_cost.h"

namespace diffserve {

// What one client has in the engine.
struct ClientShare {
  uint64_t client = 0;  // Request::client
  int running = 0;
  int requests = 0;    // in the queue
  int64_t tokens = 0;  // of these requests
  int announced = 0;   // requests that will join the queue after their text work

  int ahead() const { return requests + announced; }  // of the client's next request
};

struct QueueState {
  std::vector<ClientShare> clients;  // sorted by client
  SeatForecast seats;
  int64_t prompt_tokens_left = 0;  // that the running sequences compute before they generate
  std::optional<StepCost> cost;    // nullopt: no estimate is possible

  ClientShare Sum() const;
  // An empty share if the client has nothing here.
  ClientShare Find(uint64_t client) const;
  ClientShare& Of(uint64_t client);
};

// Estimates the seconds until a request of `client` submitted now would start. The estimate is the
// time to compute the prompts before it. If more requests are before it than can start at once, it
// adds the time until enough sequences have ended, unless the client gets a seat from another one
// because it has less than its equal part. Clients take turns, so each other client counts with at
// most as many requests as `client` has itself.
double EstimatedWait(const QueueState& queue, uint64_t client);

}  // namespace diffserve
