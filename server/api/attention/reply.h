// SPDX-License-Identifier: Apache-2.0
// The reply of POST /v1/attention. Its maps may be long, so the JSON is generated while it is sent.
// Thread safety: one thread at a time, the connection's; the answer comes from another.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/api/exchange.h"
#include "server/http/message.h"
#include "server/json/json_writer.h"
#include "server/serving/attention_call.h"

namespace diffserve {

class AttentionText {
 public:
  struct Options {
    std::string id;
    std::string model;
    int64_t created = 0;  // Unix seconds
    bool float16 = false;
  };
  AttentionText(SharedAttentionAnswer answer, Options options);
  // Appends until `out` has `enough` bytes or a little more; true if nothing is left.
  bool Write(size_t enough, std::string* out);

 private:
  void AddItem(const AttentionQueryMaps& item, JsonWriter& json) const;
  void AddMap(const char* name, const std::vector<float>& map, JsonWriter& json) const;

  const SharedAttentionAnswer answer_;
  const Options options_;
  TextPieces pieces_;
};

class AttentionExchange : public HttpExchange {
 public:
  using PendingAnswer = PendingResult<SharedAttentionAnswer>;  // the call delivers its answer there
  AttentionExchange(std::shared_ptr<AttentionMapsCall> call, std::shared_ptr<PendingAnswer> answer,
                    AttentionText::Options options, ExchangeHooks hooks);
  ~AttentionExchange() override;

  std::optional<HttpReply> Reply() override;
  bool Frames(std::string* bytes) override;

 private:
  const std::shared_ptr<AttentionMapsCall> call_;
  const std::shared_ptr<PendingAnswer> pending_answer_;
  const AttentionText::Options options_;
  const ExchangeHooks hooks_;
  std::optional<AttentionText> text_;
  std::string pending_;  // generated, not sent yet
  ExchangeOutcome outcome_ = {.status = Status(StatusCode::kCancelled, "the client went away")};
};

}  // namespace diffserve
