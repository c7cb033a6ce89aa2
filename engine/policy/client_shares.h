// SPDX-License-Identifier: Apache-2.0
// ClientShares: fairness between clients. It divides a step's tokens between them, and picks the
// sequence that gives room to another client's. Numbers only. Owned by the Scheduler.
//
// When several clients have something to compute, the one that needs the fewest tokens gets them
// all. Each other client gets at most that number plus the tokens that take as long as a step's
// overhead. A step of N clients therefore lasts at most N times as long as one for the first client
// only. The sequences of a limited client take turns. A client that cannot start a sequence
// although it holds less than its equal part of pages and sequences gets room from a client that
// holds more than its part.
#pragma once

#include <map>
#include <optional>

#include "engine/policy/sequence_pages.h"
#include "engine/policy/waiting_queue.h"

namespace diffserve {

class ClientShares {
 public:
  using Running = SequencePages::Running;
  // `pages` outlives this object.
  ClientShares(const EngineOptions& options, const SequencePages& pages)
      : options_(options), pages_(pages) {}

  // Sets Sequence::share, the maximum number of tokens of each running sequence in the next step,
  // and ClientQueue::tokens_left, those for the client's sequences that start. Nothing is limited
  // while the overhead is not known.
  void ShareOut(Running running, WaitingQueue& queue, std::optional<int> overhead_tokens);
  // Limits nothing.
  void Lift(Running running, WaitingQueue& queue);
  // Whether the step is divided between clients.
  bool shared_out() const { return shared_out_; }
  // Records the turns of a planned step.
  static void TakeTurns(Running running, uint64_t step);

  // Whether the sequence's client would hold no more than its part with it.
  bool IsWithinPart(const Sequence& next, const WaitingQueue& queue) const;
  // The youngest sequence of the clients that hold more than their part. It must not be more urgent
  // than `next`, the first of its client, and without it that client must still have the next turn.
  // nullptr: there is none that may be preempted.
  Sequence* VictimFor(const Sequence& next, Running running, const WaitingQueue& queue) const;

  static void CheckInvariants(Running running, const WaitingQueue& queue);

 private:
  struct Part {
    int64_t pages = 0;
    int sequences = 0;
  };
  Part PartOf(const WaitingQueue& queue) const;  // of each client
  std::map<ClientQueue*, int64_t> TokensWanted(Running running, const WaitingQueue& queue) const;

  const EngineOptions options_;
  const SequencePages& pages_;
  bool shared_out_ = false;
};

}  // namespace diffserve
