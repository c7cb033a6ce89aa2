// SPDX-License-Identifier: Apache-2.0
// ChunkReader: the client side of a streamed chat answer; parses the stream's events and their
// chunks. Thread safety: one thread at a time.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "kernels/base/status.h"

namespace diffserve {

class ChunkReader {
 public:
  using TakeText = std::function<void(std::string_view piece)>;

  // Takes the next bytes of the stream, cut anywhere. Error: the message of an error event, or an
  // event that is not a chunk.
  Status Take(std::string_view bytes, const TakeText& take);

  bool done() const { return done_; }  // after the last event; later bytes are ignored
  const std::string& finish_reason() const { return finish_reason_; }

 private:
  Status TakeLine(std::string_view line, const TakeText& take);
  Status TakeChunk(std::string_view data, const TakeText& take);

  std::string line_;  // the incomplete line
  bool done_ = false;
  std::string finish_reason_;
};

// The message of an error body in OpenAI's format; otherwise the body itself.
std::string OpenAiErrorMessage(std::string_view body);

}  // namespace diffserve
