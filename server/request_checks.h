// The checks of a GenerateRequest that need no text work; HTTP and gRPC share them through the
// Frontend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/frontend.h"
#include "server/sampling_ranges.h"

namespace diffserve {

// What a message may hold that comes in by either port, checked before anything is made of it.
inline constexpr size_t kMaxMessages = 4096;
inline constexpr size_t kMaxNameBytes = 256;  // of a role, a name, ...
inline constexpr size_t kMaxRequestIdBytes = 128;
inline constexpr size_t kMaxDetokenizeIds = 1 << 18;

// What a request is measured against.
struct RequestLimits {
  const FrontendOptions* options = nullptr;
  int vocab_size = 0;
  int max_model_len = 0;         // tokens of prompt and output together
  int max_waiting_requests = 0;  // continuations that can wait at all
  size_t max_token_bytes = 0;    // Tokenizer's
};

// Ok, or the first field at fault: the message says found and allowed, `param` is the field's
// OpenAI name. Whether max_tokens fits the context is known only with the prompt's tokens.
Status CheckRequest(const GenerateRequest& request, const RequestLimits& limits);
// Ok unless a text has more bytes than all tokens of the context can stand for.
Status CheckTextFits(std::string_view text, const RequestLimits& limits, const char* param);
// The same of each plain prompt.
Status CheckTextsFit(const GenerateRequest& request, const RequestLimits& limits);
// A number that the client wrote in this way, as "1e30".
Status CheckNumber(float value, const NumberRange& range, const std::string& param,
                   std::string_view written);
// A count of alternatives that a client asked for under this name.
Status CheckLogprobs(int count, const FrontendOptions& options, const char* param);
// The role of the message at `path`, such as "messages[3]".
enum class ToolMessages { kRefused, kAllowed };
Status CheckRole(std::string_view role, const std::string& path, ToolMessages tools);
Status CheckTokenIds(const std::vector<int32_t>& ids, int vocab_size, const char* param);

}  // namespace diffserve
