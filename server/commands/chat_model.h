// ChatModel: who answers in a conversation: the engine of this process, or a server at a URL.
// Thread safety: one thread; a stop may be asked for by any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "server/commands/commands.h"
#include "server/commands/lens_text.h"

namespace diffserve {

struct ChatAnswer {
  std::string text;           // all of it
  std::string finish_reason;  // as the API tells it; empty: it was stopped
  // As far as they came; empty where a server tells none.
  std::vector<int32_t> prompt_token_ids, token_ids;
};

class ChatModel {
 public:
  using TakeText = std::function<void(std::string_view piece)>;

  virtual ~ChatModel() = default;
  virtual const std::string& name() const = 0;
  // Returns once the answer has ended, or soon after `stop` is asked for, whatever the model is
  // doing then. `take` gets the text as it comes.
  virtual Result<ChatAnswer> Answer(const std::string& messages_json, const TakeText& take,
                                    const std::stop_token& stop) = 0;
  // Of a text of two tokens or more: where the model looked when it wrote the last one. Error:
  // kCancelled soon after `stop` is asked for.
  virtual Result<LensAnswer> Look(const std::vector<int32_t>& tokens,
                                  const std::stop_token& stop) = 0;
};

// Slots of a head that Look brings: those with the largest magnitudes of the difference.
inline constexpr int kLensSlots = 32;

// Loads the model. The options' ExecutorWrapper is serve's.
Result<std::unique_ptr<ChatModel>> LoadChatModel(const SessionOptions& options,
                                                 const GenerateOptions& generate,
                                                 const ChatOptions& chat,
                                                 const ExecutorWrapper& wrap);

// Asks the server at chat.url what it serves.
Result<std::unique_ptr<ChatModel>> ConnectChatModel(const SessionOptions& options,
                                                    const GenerateOptions& generate,
                                                    const ChatOptions& chat);

}  // namespace diffserve
