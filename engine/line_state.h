// LineState: what the engine thread tells of the line after a step, so that others can foresee how
// long a new request would wait. A value.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/step_cost.h"

namespace diffserve {

// What a client has in the line.
struct ClientWaiting {
  uint64_t client = 0;  // Request::client
  int requests = 0;
  int64_t tokens = 0;
};

struct LineState {
  std::vector<ClientWaiting> clients;  // by client, each with a request at least
  int running = 0;
  int free_seats = 0;                // sequences that could start besides the running ones
  double mean_generated_tokens = 0;  // of requests that have ended lately
  std::optional<StepCost> cost;      // nullopt: nothing is foreseen

  ClientWaiting Sum() const;
  const ClientWaiting* Find(uint64_t client) const;  // nullptr: it has nothing in the line
  void Add(uint64_t client, int requests, int64_t tokens);
};

// Seconds until a request of `client` that came now would start: the time that the machine takes
// for the prompts before it, and, where these are more than may start at once, for what those are
// likely to generate. Clients take turns, so of each other one as many requests are before it as
// are of its own.
double EstimatedWait(const LineState& line, uint64_t client);

}  // namespace diffserve
