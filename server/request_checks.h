// The checks of a GenerateRequest that need no text work; HTTP and gRPC share them through the
// Frontend.
#pragma once

#include <cstdint>
#include <vector>

#include "server/frontend.h"

namespace diffserve {

// What a request is measured against.
struct RequestLimits {
  const FrontendOptions* options = nullptr;
  int vocab_size = 0;
  int max_model_len = 0;         // tokens of prompt and output together
  int max_waiting_requests = 0;  // continuations that can wait at all
};

// Ok, or the first field at fault: the message says found and allowed, `param` is the field's
// OpenAI name.
Status CheckRequest(const GenerateRequest& request, const RequestLimits& limits);
// A count of alternatives that a client asked for under this name.
Status CheckLogprobs(int count, const FrontendOptions& options, const char* param);
Status CheckTokenIds(const std::vector<int32_t>& ids, int vocab_size, const char* param);

}  // namespace diffserve
