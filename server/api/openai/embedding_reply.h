// SPDX-License-Identifier: Apache-2.0
// The reply of POST /v1/embeddings. It may have many vectors, so the JSON is generated while it is
// sent.
// Thread safety: one thread at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/diagnostics/hidden_state_pool.h"
#include "server/api/json/text_pieces.h"
#include "server/api/response_encoder.h"

namespace diffserve {

class EmbeddingReply : public ResponseEncoder {
 public:
  // The pools of the request's prompts; complete when the response is done with an ok status.
  EmbeddingReply(std::vector<std::shared_ptr<HiddenStatePool>> pools, bool base64,
                 std::string model);

  void Take(ResponseEvent event) override;
  bool Write(size_t enough, std::string* out) override;
  bool written() const override { return pieces_.empty(); }
  bool started() const override { return false; }
  bool done() const override { return done_; }
  const Status& status() const override { return status_; }
  int64_t completion_tokens() const override { return 0; }

 private:
  void AddBody(const Usage& usage);
  void AddEmbedding(size_t index);

  const std::vector<std::shared_ptr<HiddenStatePool>> pools_;
  const bool base64_;
  const std::string model_;
  Status status_;
  bool done_ = false;
  TextPieces pieces_;
};

}  // namespace diffserve
