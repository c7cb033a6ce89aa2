// SPDX-License-Identifier: Apache-2.0
// The reply of POST /v1/embeddings. It may have many vectors, so the JSON is generated while it is
// sent.
// Thread safety: one thread at a time.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/diagnostics/hidden_state_pool.h"
#include "server/api/reply/response_encoder.h"

namespace diffserve {

class EmbeddingReply : public AnswerWriter {
 public:
  // The pools of the request's prompts; complete when the response is done with an ok status.
  EmbeddingReply(std::vector<std::shared_ptr<HiddenStatePool>> pools, bool base64,
                 std::string model)
      : pools_(std::move(pools)), base64_(base64), model_(std::move(model)) {}

  void OnDelta(ResponseDelta, AnswerState*) override {}
  void OnDone(AnswerState* answer) override;

 private:
  void AddEmbedding(size_t index, JsonWriter& json) const;

  const std::vector<std::shared_ptr<HiddenStatePool>> pools_;
  const bool base64_;
  const std::string model_;
};

}  // namespace diffserve
