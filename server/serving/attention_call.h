// SPDX-License-Identifier: Apache-2.0
// AttentionMapsCall: one request for attention maps, from its prompt to its answer, for HTTP and
// gRPC alike. The prompt is tokenized on a text thread, computed by the engine as any other (with
// max_tokens 0, and no further than the last position requested). A text thread then computes the
// maps from what was captured, in double precision with the reference.
// models/diagnostics/attention_shares.h defines the figures that are reported.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/diagnostics/attention_capture.h"
#include "models/diagnostics/attention_shares.h"
#include "server/serving/frontend.h"

namespace diffserve {

struct AttentionRequest {
  std::string request_id;
  std::string client;  // as of GenerateRequest
  std::string model;
  Prompt prompt;
  FieldNames names{.prompt = "text"};  // names.prompt: also of a conversation as a whole
  // Negative indices count from the end; duplicates are answered once. Empty: all layers, all
  // heads, the last position.
  std::vector<int> layers, heads, positions;  // heads: signal heads in DiffSpec's order
  bool all_positions = false;                 // whatever `positions` has
  std::optional<int> top_k;                   // nullopt: full maps; 0: only figures
  std::optional<std::pair<int, int>> span;    // slots [begin, end)
  std::optional<std::chrono::steady_clock::time_point> deadline;
};

struct AttentionSlot {
  int slot = 0;
  float map1 = 0, map2 = 0, difference = 0;
};

// The maps and figures of one query: a layer, head and position.
struct AttentionQueryMaps {
  int layer = 0, head = 0, position = 0;
  double lambda = 0;
  double entropy1 = 0, entropy2 = 0;
  double cancelled = 0;
  SpanShares on_span;
  std::vector<float> map1, map2;   // full maps: [position + 1]; map2 empty with one map
  std::vector<AttentionSlot> top;  // with top_k: the largest |difference| first
};

struct AttentionAnswer {
  int num_maps = 0, num_layers = 0, num_heads = 0;  // of the model
  std::vector<int32_t> tokens;
  std::vector<std::string> token_texts;  // a character of several tokens belongs to its last one
  bool has_span = false;
  std::optional<int> top_k;
  std::vector<AttentionQueryMaps> items;  // by layer, then head, then position
  std::shared_ptr<const void> kept;       // the reserved memory of the answer
};
using SharedAttentionAnswer = std::shared_ptr<const AttentionAnswer>;

class AttentionMapsCall : public std::enable_shared_from_this<AttentionMapsCall> {
 public:
  // Called once, on a text thread or the output thread, unless the call is abandoned.
  using Done = std::function<void(Result<SharedAttentionAnswer>)>;

  // Checks all that needs no tokens, and queues the text work. Later failures arrive at `done`.
  // `frontend` outlives the call's work.
  static Result<std::shared_ptr<AttentionMapsCall>> Start(Frontend& frontend,
                                                          AttentionRequest request, Done done);
  AttentionMapsCall(Frontend& frontend, AttentionRequest request, Done done);
  // The client is gone: the remaining work is dropped.
  void Abandon();

 private:
  Status Check();
  void TakeTokens(std::vector<int32_t> tokens);
  Status Submit(std::vector<int32_t> tokens);
  Result<size_t> Price(size_t num_tokens);
  void Drain();
  void QueueMaps();
  void Compute();
  Status MakeItems(size_t layer, int head, const GroupKeys& keys);
  void Finish(Result<SharedAttentionAnswer> answer);
  bool is_abandoned() const;

  Frontend& frontend_;
  AttentionRequest request_;
  Done done_;
  std::shared_ptr<AttentionCapture> capture_;
  std::shared_ptr<AttentionAnswer> answer_ = std::make_shared<AttentionAnswer>();
  size_t num_numbers_ = 0;  // of all maps

  mutable std::mutex mutex_;
  bool abandoned_ = false;
  std::shared_ptr<ResponseStream> stream_;
  ResponseId response_ = 0;  // 0: not submitted
};

}  // namespace diffserve
