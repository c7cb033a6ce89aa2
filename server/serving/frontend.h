// SPDX-License-Identifier: Apache-2.0
// Frontend: the entry for requests, independent of protocols. HTTP and gRPC convert their messages
// to a GenerateRequest and call it. It opens a response with the output loop. A pool of text
// threads renders the chat template, tokenizes, and passes the continuations to the output loop,
// which submits them.
//
// Thread safety: every method may be called from any thread; none blocks on the model.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/response_stream.h"
#include "engine/text/chat_template.h"
#include "engine/text/grammar.h"
#include "engine/text/output_loop.h"
#include "engine/text/tokenizer.h"
#include "models/model_config.h"
#include "server/serving/request/content_forms.h"
#include "server/serving/request/generate_request.h"
#include "server/serving/request/served_names.h"
#include "server/serving/request/template_roles.h"
#include "server/serving/tools/tool_format.h"

namespace diffserve {

struct AttentionSource;

struct FrontendOptions {
  ServedNames names;
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
  // `param`: the API's name of the ids. It outlives the call.
  Result<std::string> Detokenize(const std::vector<int32_t>& ids, const char* param) const;
  // The same on a text thread, for transports whose own threads must not decode long lists.
  Status Detokenize(const std::string& client, std::vector<int32_t> ids, const char* param,
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
