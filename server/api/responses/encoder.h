// SPDX-License-Identifier: Apache-2.0
// ResponsesResponse: an answer in the format of OpenAI's /v1/responses, as a response object or as
// events. ResponseObject: that object, which the store keeps.
// Thread safety: one thread at a time; any thread may read a const ResponseObject.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/response_stream.h"
#include "kernels/base/status.h"
#include "server/api/reply/answer_splitter.h"
#include "server/api/reply/logprobs_text.h"
#include "server/api/reply/response_encoder.h"
#include "server/api/reply/text_tokens.h"
#include "server/api/responses/store.h"

namespace diffserve {

enum class ResponseState { kInProgress, kCompleted, kIncomplete, kFailed, kCancelled };

// A message, reasoning, or a call.
struct ResponseItem {
  AnswerPart::Kind kind = AnswerPart::Kind::kContent;  // kContent, kReasoning or kToolCall
  std::string id;
  std::string text;  // the arguments of a call
  std::string name;  // of a call's tool
  std::string call_id;
  bool complete = false;
  PieceTokens tokens = {};  // of a message, if its log-probabilities are shown
};

struct ResponseObject {
  std::string id;  // "resp_..."
  std::string model;
  int64_t created_at = 0;                       // Unix seconds
  std::shared_ptr<const std::string> echo;      // members repeated from the request
  std::shared_ptr<const LogprobForm> logprobs;  // nullptr: none are shown
  ResponseState state = ResponseState::kInProgress;
  std::vector<ResponseItem> items;
  Status error;  // of kFailed
  Usage usage;
  int64_t reasoning_tokens = 0;  // of usage.completion_tokens

  size_t HeldBytes() const;
};

// The id of the response that an item belongs to, if the item's id is one of ours.
std::string ResponseIdOf(std::string_view item_id);
std::optional<ResponseItem> FindItem(const ResponseObject& object, std::string_view id);

// The object as JSON. `object` and its texts must live until all is written.
void AddResponseObject(const ResponseObject& object, JsonWriter* json);

class ResponsesResponse : public AnswerWriter {
 public:
  // Takes an object in progress without items. `tokens` finds those of the text if their
  // log-probabilities are shown. `finish` gets the object once, when a response that
  // began has ended. `drop` is called if it ends in another way or is destroyed before.
  struct Hooks {
    std::function<void(std::shared_ptr<const ResponseObject> object)> finish;
    std::function<void()> drop;  // does not throw
  };
  ResponsesResponse(bool stream, ResponseObject object, AnswerSplitter split, Hooks hooks,
                    std::optional<TextTokens> tokens = {});
  ~ResponsesResponse() override;

  void OnStarted(ResponseStarted event) override { split_.begin(event.prompts.front()); }
  void OnDelta(ResponseDelta event, AnswerState* answer) override;
  void OnDone(AnswerState* answer) override;

 private:
  void Begin(AnswerState* answer);
  void TakePart(const AnswerPart& part, AnswerState* answer);
  void OpenItem(AnswerPart::Kind kind, std::string_view name, AnswerState* answer);
  void CloseItem(bool complete, AnswerState* answer);
  // `write` writes the members after the number.
  template <typename Write>
  void AddEvent(const std::string& type, AnswerState* answer, const Write& write);
  // "item_id", "output_index" and, if it is of content, "content_index".
  void AddPlace(bool of_content, JsonWriter& json) const;
  void AddObjectEvent(const char* type, AnswerState* answer);
  const ResponseItem& item() const { return object_->items.back(); }
  ResponseItem& item() { return object_->items.back(); }

  const bool stream_;
  const AnswerSplitter split_;
  const Hooks hooks_;
  std::optional<TextTokens> tokens_;
  std::shared_ptr<ResponseObject> object_;
  std::vector<AnswerPart> parts_;  // of the last event, until they are written
  bool open_ = false;              // the last item may grow
  FinishReason finish_ = FinishReason::kNone;
  int64_t sequence_number_ = 0;
  bool told_ = false;  // a hook has been called
};

// {"object": "list", ...} of at most `limit` of the request's items, after the item `after`.
std::string InputItemsBody(const ResponseInput& input, bool ascending, size_t limit,
                           std::string_view after);

}  // namespace diffserve
