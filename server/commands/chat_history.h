// ChatHistory: the messages of a conversation so far, as the chat routes and the chat template take
// them. Thread safety: one thread at a time.
#pragma once

#include <string>
#include <string_view>

namespace diffserve {

class ChatHistory {
 public:
  // `system` is said before all else; empty: nothing is.
  explicit ChatHistory(std::string system) : system_(std::move(system)) {}

  void SetSystem(std::string system) { system_ = std::move(system); }
  const std::string& system() const { return system_; }
  void Reset() { turns_.clear(); }
  // A whole turn, once it is answered: what was not answered is not part of the conversation.
  void Add(std::string_view question, std::string_view answer);

  // The JSON array of the messages, and `question` as the last one.
  std::string MessagesJson(std::string_view question) const;

 private:
  std::string system_;
  std::string turns_;  // messages, each with a comma behind it
};

}  // namespace diffserve
