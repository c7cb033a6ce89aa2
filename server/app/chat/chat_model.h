// SPDX-License-Identifier: Apache-2.0
// ChatModel: the model that answers in a conversation, run by this process or by a server at a URL.
// Thread safety: one thread; a stop may be requested by any thread.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>

#include "server/app/options.h"
#include "server/app/session/model_session.h"
#include "server/serving/request/conversation.h"

namespace diffserve {

struct ChatAnswer {
  std::string text;           // the whole answer
  std::string finish_reason;  // as in the API; empty: the answer was stopped
};

class ChatModel {
 public:
  using TakeText = std::function<void(std::string_view piece)>;

  virtual ~ChatModel() = default;
  virtual const std::string& name() const = 0;
  // Returns when the answer has ended, or soon after a stop is requested, whatever the model does.
  // `take` gets the text as it arrives.
  virtual Result<ChatAnswer> Answer(const Conversation& conversation, const TakeText& take,
                                    const std::stop_token& stop) = 0;
};

// Loads the model. The options' ExecutorWrapper is serve's.
Result<std::unique_ptr<ChatModel>> LoadChatModel(const SessionOptions& options,
                                                 const GenerateOptions& generate,
                                                 const ChatOptions& chat,
                                                 const ExecutorWrapper& wrap);

// Connects to the server at chat.url and reads its model's name.
Result<std::unique_ptr<ChatModel>> ConnectChatModel(const SessionOptions& options,
                                                    const GenerateOptions& generate,
                                                    const ChatOptions& chat);

}  // namespace diffserve
