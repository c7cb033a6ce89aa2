// The body of OpenAI's /v1/responses, read in two steps: what it says itself, and, once the
// response that it goes on from is found, the chat that both make. No I/O, no engine.
// Thread safety: pure functions.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/status.h"
#include "server/openai/request.h"
#include "server/openai/responses_response.h"
#include "server/openai/responses_store.h"

namespace diffserve {

struct ResponsesRequest {
  std::string previous_response_id;  // empty: none
  bool store = true;
  std::string members;       // of the chat body, but for its messages
  std::string instructions;  // a message, or empty
  std::string messages;      // of `input`
  std::string echo;          // what the reply repeats of the request, as members
  ResponseInput input;       // without the conversation

  size_t HeldBytes() const {
    return members.size() + instructions.size() + messages.size() + echo.size();
  }
};

// An item of an answer that is kept, by its id.
using FindResponseItem = std::function<std::optional<ResponseItem>(const std::string& id)>;

// Reasoning of earlier turns is left out of the conversation, and so are tools of the API's vendor
// and what they did. Error: kInvalidArgument that names the member.
Result<ResponsesRequest> ParseResponsesRequest(std::string_view body, const OpenAiContext& context,
                                               const FindResponseItem& find = {});

struct ResponsesChat {
  OpenAiRequest request;
  std::shared_ptr<const std::string> echo;     // with what the server chose
  std::shared_ptr<const ResponseInput> input;  // with the whole conversation
};
// `previous`: what it goes on from, or nothing. Error as above, with the names of this route.
Result<ResponsesChat> ChatOf(const ResponsesRequest& request, const StoredResponse* previous,
                             const OpenAiContext& context);

// An error of the chat that this route made of a request, by the names that the client knows.
Status InResponsesNames(const Status& status);

}  // namespace diffserve
