// SPDX-License-Identifier: Apache-2.0
// SimulatedReaders: the simulation's part after the engine loop, with the server's own queues.
// Events go into an outbox that is emptied late, and from it to their request's stream. Some
// clients read at once, some slowly, some never, and some leave. The checks of the streams:
//
//  - what a client reads are its request's tokens in order, then one end, then nothing
//  - no stream holds more than its limit, and only a client that is too slow is cut
//  - a client that is cut or leaves has its request cancelled, the others get all that was posted
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/bounded_queue.h"
#include "engine/response_stream.h"
#include "tests/testing/engine/simulated_requests.h"

namespace diffserve::testing {

class SimulatedReaders {
 public:
  struct Counts {
    uint64_t waits = 0;       // the outbox was full
    uint64_t overflowed = 0;  // clients that were too slow
    uint64_t left = 0;        // clients that left
    uint64_t late = 0;        // slow clients that had something to read after the last event
  };
  using Cancel = std::function<void(RequestId)>;

  SimulatedReaders(uint64_t seed, Cancel cancel);

  // Adds an accepted request; the client's behaviour depends only on the id.
  void Open(RequestId id);

  // The engine's side: takes an event of a live request. If the outbox is full, the engine waits
  // until the output thread has taken one message.
  void Post(TokenEvent event);

  // Call after a turn of the engine: the output thread takes all messages or falls behind, and
  // clients read.
  void Turn();

  // Call after the last turn: every client reads what is left.
  void Finish();

  const Counts& counts() const { return counts_; }
  const std::string& violation() const { return violation_; }

 private:
  static constexpr int kNever = 0;

  struct Reader {
    explicit Reader(size_t limit_in) : limit(limit_in), stream(limit_in, nullptr) {}

    const size_t limit;
    int pace = 1;                        // turns per read of one event; 1: reads everything each
                                         // turn
    std::optional<size_t> leaves_after;  // tokens
    ResponseStream stream;
    size_t held = 0;  // bytes in the stream, without the end
    std::vector<int32_t> posted, read;
    bool is_over = false;  // the request's last event was taken
    bool is_cut = false, has_left = false, has_end = false;
  };

  static Status TooSlow() { return Status(StatusCode::kCancelled, "read too slowly"); }
  static size_t LimitOf(Dice& dice);
  void Require(bool condition, const char* what);

  // The output thread takes a message.
  void Deliver();
  void Push(const TokenEvent& event, Reader& reader);
  void Leave(RequestId id, Reader& reader);

  // False if there is nothing to read.
  bool Read(Reader& reader);

  Dice dice_;
  const Cancel cancel_;
  BoundedQueue<TokenEvent> outbox_;
  const int percent_late_;
  uint64_t turn_ = 0;
  std::map<RequestId, Reader> readers_;
  Counts counts_;
  std::string violation_;
};

}  // namespace diffserve::testing
