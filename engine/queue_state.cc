// SPDX-License-Identifier: Apache-2.0
#include "engine/queue_state.h"

#include <algorithm>

namespace diffserve {
namespace {

auto PositionOf(std::vector<ClientWaiting>& clients, uint64_t client) {
  return std::ranges::lower_bound(clients, client, {}, &ClientWaiting::client);
}

}  // namespace

ClientWaiting QueueState::Sum() const {
  ClientWaiting sum;
  for (const ClientWaiting& waiting : clients) {
    sum.requests += waiting.requests;
    sum.tokens += waiting.tokens;
  }
  return sum;
}

const ClientWaiting* QueueState::Find(uint64_t client) const {
  const auto place = std::ranges::lower_bound(clients, client, {}, &ClientWaiting::client);
  return place != clients.end() && place->client == client ? &*place : nullptr;
}

void QueueState::Add(uint64_t client, int requests, int64_t tokens) {
  auto place = PositionOf(clients, client);
  if (place == clients.end() || place->client != client)
    place = clients.insert(place, {.client = client});
  place->requests += requests;
  place->tokens += tokens;
}

double EstimatedWait(const QueueState& queue, uint64_t client) {
  const ClientWaiting* const own = queue.Find(client);
  if (own == nullptr || !queue.cost) return 0;
  double requests = 0, tokens = 0;
  for (const ClientWaiting& other : queue.clients) {
    const double share = std::min(1.0, static_cast<double>(own->requests) / other.requests);
    requests += share * other.requests;
    tokens += share * static_cast<double>(other.tokens);
  }
  const double to_end = std::max(0.0, requests - queue.free_seats) * queue.mean_generated_tokens;
  const double decode_seconds = queue.cost->overhead_seconds / std::max(1, queue.running) +
                                queue.cost->token_seconds;
  return tokens * queue.cost->token_seconds + to_end * decode_seconds;
}

}  // namespace diffserve
