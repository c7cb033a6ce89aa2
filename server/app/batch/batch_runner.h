// SPDX-License-Identifier: Apache-2.0
// BatchRunner: answers the requests of a file through the routes of the HTTP port, without sockets.
// It keeps a fixed number of requests in flight and writes each answer when it is complete.
//
// A refusal for lack of room (429) is no answer: the request waits, and with it all later ones,
// until another request has ended or a short pause is over. A full disk stops new requests; the
// answers that are complete wait in memory, so there are at most as many as requests in flight. A
// pipe that has no line now holds up no answer.
//
// Thread safety: Run on one thread; Stop from any.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "kernels/base/status.h"
#include "server/app/batch/batch_journal.h"
#include "server/app/batch/batch_lines.h"
#include "server/app/batch/line_reader.h"
#include "server/http/gate.h"
#include "server/http/message.h"

namespace diffserve {

struct BatchRunnerOptions {
  size_t max_in_flight = 1;
  size_t max_body_bytes = HttpLimits().max_body_bytes;
  size_t max_bytes_in_flight = size_t{64} << 20;  // of bodies; a longer one runs by itself
  std::chrono::milliseconds refusal_pause{50};
  int max_refusals_alone = 40;  // of a request while no other runs; then the refusal is its answer
  std::chrono::milliseconds full_disk_pause{1'000};
};

struct BatchCounts {
  uint64_t answered = 0;        // lines written by this run
  uint64_t errors = 0;          // of these, with an HTTP status from 400, or without a response
  uint64_t skipped = 0;         // lines that an earlier run has answered
  uint64_t bytes_answered = 0;  // of the input
  uint64_t bytes_skipped = 0;
};

class BatchRunner {
 public:
  using Serve = std::function<HttpAnswer(HttpRequest request, std::function<void()> wake)>;
  using Report = std::function<void(const BatchCounts& counts)>;  // called often, on Run's thread

  // The references outlive it, and it outlives no work that `serve` has begun.
  BatchRunner(BatchRunnerOptions options, Serve serve, LineReader& input, BatchJournal& journal,
              Report report);
  ~BatchRunner();

  // Returns when every line of the input has its answer in the journal. Error: a file failed, the
  // engine failed (503), or kCancelled after Stop.
  Status Run();
  // No further request starts; Run returns when those in flight have ended.
  void Stop();

  const BatchCounts& counts() const { return counts_; }
  // How many answers that the journal had belong to no line of the input. REQUIRES: Run returned
  // OK.
  size_t num_unmatched() const {
    return journal_.answered().custom_ids.size() + journal_.answered().lines.size();
  }

 private:
  using Clock = std::chrono::steady_clock;
  class Bell;
  struct InFlight {
    BatchRequest request;
    uint64_t input_bytes = 0;
    std::unique_ptr<HttpExchange> exchange = nullptr;
    std::optional<HttpReply> reply = std::nullopt;  // its body grows while it `streams`
  };
  struct Output {
    std::string line;
    uint64_t input_bytes = 0;
    bool is_error = false;
  };

  bool MayStart() const;
  Status StartNext();
  Status Start(InFlight started);
  Status Poll(uint64_t key);
  Status Take(InFlight ended);
  Status Write();
  Status StoppedStatus() const;
  std::optional<Clock::time_point> NextTurn() const;

  const BatchRunnerOptions options_;
  const Serve serve_;
  LineReader& input_;
  BatchJournal& journal_;
  const Report report_;
  const std::shared_ptr<Bell> bell_;
  bool stopping_ = false;
  bool input_ended_ = false;
  bool waits_for_input_ = false;          // a pipe had no whole line
  std::unordered_set<std::string> seen_;  // custom_ids of the input so far
  std::unordered_map<uint64_t, InFlight> in_flight_;
  size_t bytes_in_flight_ = 0;  // of bodies
  uint64_t last_key_ = 0;
  std::deque<InFlight> refused_;  // they start again, before the input's next
  Clock::time_point held_until_;  // no request starts before
  int refusals_alone_ = 0;
  std::deque<Output> unwritten_;
  bool disk_is_full_ = false;
  Clock::time_point next_write_;
  BatchCounts counts_;
};

}  // namespace diffserve
