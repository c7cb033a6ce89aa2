// SPDX-License-Identifier: Apache-2.0
// The checks of a GenerateRequest that need no text work; HTTP and gRPC share them through the
// Frontend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/serving/request/generate_request.h"
#include "server/serving/request/sampling_numbers.h"
#include "server/serving/request/served_names.h"

namespace diffserve {

// Limits of a message on either port, checked before anything is allocated for it.
inline constexpr size_t kMaxMessages = 4096;
inline constexpr size_t kMaxNameBytes = 256;  // of a role, a name, ...
inline constexpr size_t kMaxRequestIdBytes = 128;
inline constexpr size_t kMaxDetokenizeIds = 1 << 18;
inline constexpr size_t kMaxPrompts = 2048;  // per request, OpenAI's limit
inline constexpr int kMaxN = 16;
inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopBytes = 1024;  // of all stop strings together
inline constexpr size_t kMaxStopTokenIds = 256;
inline constexpr size_t kMaxLogitBias = 1024;
inline constexpr int kMaxLogprobs = 20;
inline constexpr size_t kMaxCacheSaltBytes = 256;
inline constexpr size_t kMaxAllowedTokenIds = 1 << 16;
inline constexpr size_t kMaxBadWords = 256;
inline constexpr size_t kMaxBadWordsBytes = 8 << 10;  // of all together
inline constexpr size_t kMaxTools = 1024;
inline constexpr size_t kMaxToolsBytes = 1 << 20;                  // of all together, as JSON
inline constexpr int64_t kMaxAttentionNumbers = int64_t{1} << 22;  // in the maps of one request

// The limits that come from the model and its engine.
struct RequestLimits {
  const ServedNames* names = nullptr;
  int vocab_size = 0;
  int max_model_len = 0;         // tokens of prompt and output together
  int max_waiting_requests = 0;  // continuations that can wait at all
  size_t max_token_bytes = 0;    // Tokenizer's
};

// OK, or the first invalid field: the message says found and allowed, `param` is the field's
// name in its API. Whether max_tokens fits the context is known only with the prompt's tokens.
Status CheckRequest(const GenerateRequest& request, const RequestLimits& limits);
// The first field that needs a tokenizer, as an error.
Status CheckNeedsNoTokenizer(const GenerateRequest& request);
// OK unless a text has more bytes than all tokens of the context can encode.
Status CheckTextFits(std::string_view text, const RequestLimits& limits, const char* param);
// The same for each plain prompt.
Status CheckTextsFit(const GenerateRequest& request, const RequestLimits& limits);
// A number in the client's own spelling, such as "1e30".
Status CheckNumber(float value, const NumberRange& range, const std::string& param,
                   std::string_view written);
// Checks a count of alternatives that the client gave under this name.
Status CheckLogprobs(int count, const char* param);
// Checks the role of the message at `path`, such as "messages[3]".
enum class ToolMessages { kRefused, kAllowed };
Status CheckRole(std::string_view role, const std::string& path, ToolMessages tools);
Status CheckTokenIds(const std::vector<int32_t>& ids, int vocab_size, const char* param);

}  // namespace diffserve
