// ChunkReader: the client's side of a streamed chat answer: the events of the stream, and what
// their chunks say. Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"

namespace diffserve {

class ChunkReader {
 public:
  using TakeText = std::function<void(std::string_view piece)>;

  // Bytes of the stream, cut anywhere. Error: an event that says so, in its words, or one that is
  // no chunk.
  Status Take(std::string_view bytes, const TakeText& take);

  bool done() const { return done_; }  // the last event has come; nothing after it is looked at
  const std::string& finish_reason() const { return finish_reason_; }
  // If they were asked for (return_token_ids) and the server tells them.
  const std::vector<int32_t>& prompt_token_ids() const { return prompt_token_ids_; }
  const std::vector<int32_t>& token_ids() const { return token_ids_; }

 private:
  Status TakeLine(std::string_view line, const TakeText& take);
  Status TakeChunk(std::string_view data, const TakeText& take);

  std::string line_;  // the begin of one
  bool done_ = false;
  std::string finish_reason_;
  std::vector<int32_t> prompt_token_ids_, token_ids_;
};

// The message of an error body in OpenAI's form; the body's own text if it is none.
std::string OpenAiErrorMessage(std::string_view body);

}  // namespace diffserve
