// SPDX-License-Identifier: Apache-2.0
#include "engine/policy/request_fit.h"

#include <string>

#include "engine/policy/sequence.h"
#include "kernels/base/refusal.h"

namespace diffserve {

Status CheckFits(const EngineOptions& options, const Request& request) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t wanted = prompt + request.max_tokens;
  if (prompt == 0) return NotAllowed("the prompt has no tokens", "at least 1", "prompt");
  const bool needs_no_output = request.sampling.prompt_logprobs >= 0 || !request.observers.empty();
  if (request.max_tokens < 0 || (request.max_tokens == 0 && !needs_no_output)) {
    return NotAllowed("max_tokens is " + std::to_string(request.max_tokens),
                      "at least 1, or 0 with log-probabilities of the prompt", "max_tokens");
  }
  if (wanted > options.max_model_len) {
    return InvalidArgument(
        "the maximum context length is " + std::to_string(options.max_model_len) + " tokens, but " +
            std::to_string(wanted) + " were requested (" + std::to_string(prompt) +
            " in the prompt, " + std::to_string(request.max_tokens) + " in max_tokens)",
        prompt >= options.max_model_len ? "prompt" : "max_tokens");
  }
  const int64_t pages = PagesFor(MaxCachedTokens(request), options.page_size);
  if (pages > options.num_pages) {
    return InvalidArgument(
        "the KV cache holds " + std::to_string(int64_t{options.num_pages} * options.page_size) +
            " tokens, but " + std::to_string(wanted) + " were requested (" +
            std::to_string(prompt) + " in the prompt, " + std::to_string(request.max_tokens) +
            " in max_tokens)",
        PagesFor(prompt, options.page_size) > options.num_pages ? "prompt" : "max_tokens");
  }
  return Status();
}

}  // namespace diffserve
