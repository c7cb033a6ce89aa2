// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/queue_state.h"

#include <algorithm>

namespace diffserve {

ClientShare QueueState::Sum() const {
  ClientShare sum;
  for (const ClientShare& share : clients) {
    sum.running += share.running;
    sum.requests += share.requests;
    sum.tokens += share.tokens;
    sum.announced += share.announced;
  }
  return sum;
}

ClientShare QueueState::Find(uint64_t client) const {
  const auto place = std::ranges::lower_bound(clients, client, {}, &ClientShare::client);
  return place != clients.end() && place->client == client ? *place : ClientShare();
}

ClientShare& QueueState::Of(uint64_t client) {
  auto place = std::ranges::lower_bound(clients, client, {}, &ClientShare::client);
  if (place == clients.end() || place->client != client)
    place = clients.insert(place, {.client = client});
  return *place;
}

double EstimatedWait(const QueueState& queue, uint64_t client) {
  if (!queue.cost) return 0;
  const ClientShare own = queue.Find(client);
  double requests = 0, tokens = 0;
  int num_clients = own.running + own.ahead() > 0 ? 0 : 1;
  for (const ClientShare& other : queue.clients) {
    num_clients += other.running + other.ahead() > 0 ? 1 : 0;
    if (other.ahead() == 0) continue;
    const double turns = std::min(own.ahead(), other.ahead());
    requests += turns;
    tokens += turns / other.ahead() * static_cast<double>(other.tokens);
  }
  const int seats = queue.seats.seats();
  const double token_seconds = queue.cost->token_seconds;
  const double prompt_seconds = tokens * token_seconds;
  if (own.running + own.ahead() < std::max(1, seats / num_clients)) return prompt_seconds;
  const double steps = queue.seats.TokensUntilStart(requests);
  if (steps == 0) return prompt_seconds;
  return prompt_seconds + static_cast<double>(queue.prompt_tokens_left) * token_seconds +
         steps * (queue.cost->overhead_seconds + seats * token_seconds);
}

}  // namespace diffserve
