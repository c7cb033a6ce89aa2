// SPDX-License-Identifier: Apache-2.0
// Frontend: the entry for requests, independent of protocols. HTTP and gRPC convert their messages
// to a GenerateRequest and call it. It opens a response with the output loop. A pool of text
// threads renders the chat template, tokenizes, and passes the continuations to the output loop,
// which submits them.
//
// Thread safety: every method may be called from any thread; none blocks on the model.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/engine.h"
#include "engine/response_stream.h"
#include "engine/text/chat_template.h"
#include "engine/text/grammar.h"
#include "engine/text/output_loop.h"
#include "engine/text/tokenizer.h"
#include "models/model_config.h"
#include "server/serving/field_names.h"
#include "server/serving/request/conversation.h"
#include "server/serving/request/template_roles.h"
#include "server/serving/tools/tool_format.h"

namespace diffserve {

class AttentionCapture;
class HiddenStatePool;
struct AttentionSource;

// Text is tokenized with special tokens added. A conversation is rendered first and
// tokenized without them; ids are used unchanged. Special tokens written in a text prompt are
// special tokens. In messages they are plain text, unless FrontendOptions says otherwise.
using Prompt = std::variant<std::string, std::vector<int32_t>, Conversation>;

// How much of an answer the transport buffers until its last byte is sent: one event, or all of it,
// as text or with its tokens.
enum class AnswerHolds { kEvents, kText, kTokens };

struct GenerateRequest {
  std::string request_id;  // the client's X-Request-Id, or one that the transport generated
  std::string client;      // ClientName: queues are fair between clients
  std::string model;       // empty: the served model
  FieldNames names;        // in errors
  std::vector<Prompt> prompts;
  int n = 1;
  std::optional<int> max_tokens;  // nullopt: max_tokens_default, as far as the context allows
  int max_tokens_default = 0;     // 0: all that the context leaves
  SamplingSpec sampling;          // start from Frontend::DefaultSampling()
  // A guess at the answer (OpenAI's `prediction`). Correct parts save time. Ignored without
  // speculation and beyond the context.
  std::string prediction;
  std::vector<std::string> stop;
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  std::optional<bool> add_special_tokens;  // nullopt: as described at Prompt
  bool want_prompt_text = false;           // decode id prompts for PromptInfo::text (echo)
  AnswerHolds holds = AnswerHolds::kEvents;
  // For a single prompt: filled when the response is done; its memory is reserved after the price
  // check. nullptr: nothing is captured.
  std::shared_ptr<AttentionCapture> capture;
  size_t capture_bytes = 0;  // of the capture and of the maps made from it
  // One per prompt, or none: filled when the response is done, as `capture`. REQUIRES: n is 1.
  std::vector<std::shared_ptr<HiddenStatePool>> pools;
  std::optional<GrammarSpec> grammar;  // of the answer, after its reasoning
  // With `grammar`: the text at which an answer becomes tool calls instead; empty: never.
  std::string call_marker;
  std::optional<GrammarSpec> call_grammar;  // of an answer of calls; nullopt: unconstrained
  std::optional<std::string> whitespace;    // of both, as GrammarSpec's
  // How the reasoning at the start of an answer is marked; nullptr: there is none. Its end is
  // forced after max_reasoning_tokens; -1: no limit.
  const ReasoningFormat* reasoning = nullptr;
  int max_reasoning_tokens = -1;
  std::vector<int32_t> allowed_token_ids;  // empty: all
  std::vector<std::string> bad_words;
  // Keeps the last N tokens of a prompt, or the first with truncate_right; -1: as many as the
  // context leaves after max_tokens.
  std::optional<int> truncate_prompt_tokens;
  bool truncate_right = false;
  int priority = 0;  // as Request::priority
  std::string cache_salt;
  std::optional<std::chrono::steady_clock::time_point> deadline;  // after it the request ends with
                                                                  // kDeadlineExceeded
};

struct FrontendOptions {
  std::string served_model_name;                 // the name in answers
  std::vector<std::string> further_model_names;  // requests may use these too
  std::vector<std::string> AllModelNames() const;
  bool Serves(std::string_view name) const;
  // An empty name means the model that is served. Error: UnknownModel.
  Status CheckModel(std::string_view name) const;
  size_t max_prompts = 2048;  // per request, OpenAI's limit
  int max_n = 16;
  size_t max_stop_strings = 16;
  size_t max_stop_bytes = 1024;  // of all stop strings together
  size_t max_stop_token_ids = 256;
  size_t max_logit_bias = 1024;
  int max_logprobs = 20;
  size_t max_cache_salt_bytes = 256;
  size_t max_allowed_token_ids = 1 << 16;
  size_t max_bad_words = 256;
  size_t max_bad_words_bytes = 8 << 10;  // of all together
  size_t max_tools = 1024;
  size_t max_tools_bytes = 1 << 20;  // of all together, as JSON
  TemplateRoles template_roles;
  ContentForms content_forms;
  GrammarLimits grammar;
  AnswerFormats formats;              // of the model's answers
  size_t max_stream_bytes = 1 << 20;  // queued for a slow reader before the request is cancelled
  // Memory limits of one answer and of all answers together (answer_price.h).
  size_t max_answer_bytes = size_t{256} << 20;
  size_t max_answers_bytes = size_t{2} << 30;
  int text_threads = 2;
  int max_text_queue = 1024;                         // requests waiting for a text thread
  size_t max_text_queue_bytes = size_t{64} << 20;    // their prompts together
  std::shared_ptr<const AttentionSource> attention;  // nullptr: maps are not available
  bool on_gpu = false;                               // no HiddenStatePool is filled there
  int64_t max_attention_numbers = int64_t{1} << 22;  // in the maps of one request
};

class Frontend {
 public:
  Frontend(FrontendOptions options, const ModelConfig& config, const Tokenizer& tokenizer,
           const ChatTemplate* chat_template, Engine& engine, OutputLoop& output);
  ~Frontend();  // ends queued text work with kUnavailable and joins the text threads

  // Checks the fields (the Status names the parameter) and the price of the answer, then opens the
  // response and queues the text work. Later failures, such as a full text queue, arrive as
  // ResponseDone. The answer's maximum memory is reserved until the last holder of `stream`
  // releases it.
  Result<ResponseId> Generate(GenerateRequest request, std::shared_ptr<ResponseStream> stream);
  // Prepares what Generate would run, without running it. `done` runs on a text thread.
  Status Render(GenerateRequest request, std::function<void(Result<TokenizedRequest>)> done);
  // Ends all of the client's responses of this request id (the Cancel RPC). False if the id is
  // unknown, has ended or is another client's.
  bool Cancel(const std::string& client, const std::string& request_id);
  // The transport's client is gone and the stream is closed: ends the response if it still runs.
  void Abandon(ResponseId response);

  // Returns when no transport holds an answer, or at `deadline`.
  void WaitForAnswers(std::chrono::steady_clock::time_point deadline) const;

  // Maximum tokens of a sequence: the model's context or the whole page pool, whichever is less.
  int MaxTokens() const;

  // The defaults of a request: generation_config's values, and a fresh seed at each call.
  SamplingSpec DefaultSampling() const;

  // Renders and tokenizes on a text thread; `done` runs there. `client` is GenerateRequest's.
  struct TokenizeOptions {
    bool add_special_tokens = true;
    FieldNames names = {};
  };
  Status Tokenize(const std::string& client, Prompt prompt, const TokenizeOptions& options,
                  std::function<void(Result<std::vector<int32_t>>)> done);
  Result<std::string> Detokenize(const std::vector<int32_t>& ids) const;
  // The same on a text thread, for transports whose own threads must not decode long lists.
  Status Detokenize(const std::string& client, std::vector<int32_t> ids,
                    std::function<void(Result<std::string>)> done);

  // Queues other text work, such as parsing a body that is too large for an I/O thread. `bytes`:
  // the memory it holds. `work` gets false if the frontend ends before its turn. Returns
  // kResourceExhausted if the text queue is full.
  Status RunOnTextThread(const std::string& client, size_t bytes,
                         std::function<void(bool run)> work);

  const FrontendOptions& options() const;
  const ModelConfig& model_config() const;
  const Tokenizer& tokenizer() const;
  Engine& engine();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace diffserve
