// What goes out in OpenAI's form: one response assembled from its events, as a whole body or as
// server-sent events, and the small objects of the other routes. Text that is not valid UTF-8
// leaves with U+FFFD in its place.
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/response_stream.h"
#include "kernels/base/status.h"
#include "server/openai/request.h"

namespace diffserve {

// {"error": {"message", "type", "param", "code"}}: always four keys; param and code are null if
// there is nothing to say.
std::string OpenAiErrorBody(const Status& status);

struct OpenAiIdentity {
  std::string id;  // "cmpl-..." or "chatcmpl-..."
  std::string model;
  std::string fingerprint;
  int64_t created = 0;  // Unix seconds
};

// What a token stands for; may be part of a character.
using TokenBytes = std::function<std::string(int32_t)>;

class OpenAiResponse {
 public:
  OpenAiResponse(const OpenAiRequest& request, OpenAiIdentity identity, TokenBytes token_bytes);

  // Takes the next event; a streaming response appends its frames to `frames`.
  void Take(ResponseEvent event, std::string* frames);
  // Something has been answered: a later error cannot become an HTTP status any more.
  bool started() const { return started_; }
  bool done() const { return done_; }
  const Status& status() const { return status_; }  // of the end
  int64_t completion_tokens() const {
    return done_ ? usage_.completion_tokens : streamed_tokens_;
  }  // so far

  // The whole body. REQUIRES: done, status().ok(), not streaming.
  std::string Body() const;

 private:
  struct Choice {
    std::string text;
    std::vector<SampleResult> tokens;           // kept for log-probabilities and ids
    std::vector<SampleResult> prompt_logprobs;  // as ResponsePromptLogprobs has them
    FinishReason finish = FinishReason::kNone;
    std::variant<std::monostate, std::string, int32_t> stop_reason;
    int64_t text_offset = 0;  // characters before the next token
    bool opened = false;      // the first chunk has been sent
  };
  // What one streamed chunk says of a choice.
  struct Chunk {
    std::string_view text;
    const std::vector<SampleResult>* tokens = nullptr;
    const ResponseDelta* end = nullptr;  // the delta that finishes the choice
    bool opens = false;
  };
  void OnStarted(ResponseStarted event);
  void OnPromptLogprobs(ResponsePromptLogprobs event, std::string* frames);
  void OnDelta(ResponseDelta event, std::string* frames);
  void OnDone(ResponseDone event, std::string* frames);
  void OpenChoice(int index, std::string* frames);
  void AppendChunk(int index, const Chunk& chunk, std::string* frames);
  std::string RunningUsage() const;
  const PromptInfo& PromptOf(int choice) const;

  const bool chat_, stream_, include_usage_, continuous_usage_, echo_, logprobs_, return_token_ids_;
  const int n_, num_logprobs_, prompt_logprobs_;
  const OpenAiIdentity identity_;
  const TokenBytes token_bytes_;
  std::string head_;  // of every chunk, up to "choices"
  std::vector<PromptInfo> prompts_;
  std::vector<Choice> choices_;
  int64_t prompt_tokens_ = 0;
  int64_t streamed_tokens_ = 0;
  Usage usage_;
  Status status_;
  bool started_ = false;
  bool done_ = false;
};

struct ModelCard {
  std::string name;
  std::string root;  // the directory or name it came from
  int max_model_len = 0;
  int64_t created = 0;
};
std::string ModelBody(const ModelCard& card);
std::string ModelListBody(const ModelCard& card);
std::string TokenizeBody(const std::vector<int32_t>& ids, int max_model_len,
                         const std::vector<std::string>* token_strs);
std::string DetokenizeBody(std::string_view text);
std::string VersionBody(std::string_view version, std::string_view commit);
std::string LoadBody(int64_t requests);

}  // namespace diffserve
