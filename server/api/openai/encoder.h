// SPDX-License-Identifier: Apache-2.0
// Replies in OpenAI's format: one response assembled from its events, as a whole body or as
// server-sent events, and the small objects of other routes. Invalid UTF-8 is sent as U+FFFD. Long
// replies are generated piece by piece while they are written.
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/response_stream.h"
#include "kernels/base/status.h"
#include "server/api/openai/chat_parts.h"
#include "server/api/openai/request.h"
#include "server/api/reply/logprobs_text.h"
#include "server/api/reply/reply_members.h"
#include "server/api/reply/response_encoder.h"
#include "server/json/json_writer.h"

namespace diffserve {

struct OpenAiIdentity {
  std::string id;  // "cmpl-..." or "chatcmpl-..."
  std::string model;
  std::string fingerprint;
  int64_t created = 0;  // Unix seconds
};

class OpenAiResponse : public AnswerWriter {
 public:
  OpenAiResponse(const OpenAiRequest& request, OpenAiIdentity identity, const TokenTexts& texts);

  void OnStarted(ResponseStarted event) override;
  void OnPromptLogprobs(ResponsePromptLogprobs event, AnswerState* answer) override;
  void OnDelta(ResponseDelta event, AnswerState* answer) override;
  void OnDone(AnswerState* answer) override;

 private:
  struct Choice {
    std::string text;                  // of a completion
    std::unique_ptr<ChatText> chat;    // the parser of a chat
    AnswerMessage message;             // the whole message of a chat
    std::vector<SampleResult> tokens;  // of a whole body, kept for log-probabilities and ids
    size_t opening_tokens = 0;         // number of opening tokens, as in ResponseDelta
    PromptScores prompt_scores = std::make_shared<const std::vector<SampleResult>>();
    FinishReason finish = FinishReason::kNone;
    std::variant<std::monostate, std::string, int32_t> stop_reason;
    int64_t text_offset = 0;   // characters before the next token
    size_t prompt_offset = 0;  // bytes of an echoed prompt before its next token
    bool opened = false;       // the first chunk has been sent
  };
  // One choice of a streamed chunk; the pointers are valid until it is written.
  struct Chunk {
    std::string_view text;
    const AnswerMessage* message = nullptr;  // of a chat, instead
    const std::vector<SampleResult>* tokens = nullptr;
    size_t opening_tokens = 0;
    const ResponseDelta* end = nullptr;  // the delta that finishes the choice
    bool opens = false;
  };
  void OpenChoice(int index, AnswerState* answer);
  void AddChunk(int index, const Chunk& chunk, AnswerState* answer);
  void AddChunkChoice(int index, const Chunk& chunk, JsonWriter& json);
  void AddBody(const AnswerState& answer, JsonWriter json);
  void AddBodyChoice(size_t index, JsonWriter& json);
  // Four parallel lists: for the prompt if `echo`, then for the generated tokens.
  void AddCompletionLogprobs(int index, bool echo, GeneratedTokens generated, JsonWriter& json);
  // Past the prompt's token `i`, or past a generated one.
  void PassPromptToken(Choice& choice, const PromptInfo& prompt, size_t i) const;
  void PassToken(Choice& choice, int32_t id, bool opens_text) const;
  void AddChatLogprobs(GeneratedTokens generated, JsonWriter& json) const;
  // With the timings if they were asked for.
  void AddFinalUsage(const AnswerState& answer, JsonWriter& json) const;
  const char* FinishName(const Choice& choice, FinishReason reason) const;
  const PromptInfo& PromptOf(int choice) const;

  const bool chat_, stream_, include_usage_, continuous_usage_, echo_, logprobs_, return_token_ids_;
  const bool predicts_, timings_;
  const bool hides_eos_, skip_special_tokens_;
  const int n_;
  const OpenAiIdentity identity_;
  const ChatForm chat_form_;
  const LogprobForm logprob_form_;
  std::string head_;  // members of every chunk before "choices"
  std::vector<PromptInfo> prompts_;
  std::vector<Choice> choices_;
  ResponseDelta delta_;  // of a stream, while its chunk is written
  AnswerMessage delta_message_;
};

struct ModelCard {
  std::string name;
  std::string root;  // the directory or name it came from
  int max_model_len = 0;
  int64_t created = 0;
};
std::string ModelBody(const ModelCard& card);
std::string ModelListBody(const std::vector<ModelCard>& cards);
std::string TokenizeBody(const std::vector<int32_t>& ids, int max_model_len,
                         const std::vector<std::string>* token_strs);

}  // namespace diffserve
