// SPDX-License-Identifier: Apache-2.0
// GenerateRequest: what every API's request for answers becomes. The Frontend takes it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/contract/sampling_spec.h"
#include "engine/text/grammar.h"
#include "server/serving/request/conversation.h"
#include "server/serving/request/field_names.h"
#include "server/serving/tools/tool_format.h"

namespace diffserve {

class AttentionCapture;
class HiddenStatePool;

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

}  // namespace diffserve
