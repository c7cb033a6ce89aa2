// SPDX-License-Identifier: Apache-2.0
// The replies of POST /v1/embeddings and POST /pooling. They may have many vectors, so the JSON is
// generated while it is sent.
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/diagnostics/hidden_state_pool.h"
#include "server/api/reply/response_encoder.h"

namespace diffserve {

class EmbeddingReply : public AnswerWriter {
 public:
  // In the form of OpenAI, or of vLLM's /pooling where `pooling_id` is given. The pools are those
  // of the request's prompts; complete when the response is done with an ok status.
  struct Form {
    bool base64 = false;
    std::string model;
    std::string pooling_id = {};
    int64_t created = 0;  // Unix seconds, beside pooling_id
  };
  EmbeddingReply(std::vector<std::shared_ptr<HiddenStatePool>> pools, Form form)
      : pools_(std::move(pools)), form_(std::move(form)) {}

  void OnDelta(ResponseDelta, AnswerState*) override {}
  void OnDone(AnswerState* answer) override;

 private:
  void AddItem(size_t index, JsonWriter& json) const;
  void AddVectors(const HiddenStatePool& pool, JsonWriter& json) const;

  const std::vector<std::shared_ptr<HiddenStatePool>> pools_;
  const Form form_;
};

}  // namespace diffserve
