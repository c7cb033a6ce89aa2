// SPDX-License-Identifier: Apache-2.0
#include "server/api/reply/response_encoder.h"

#include <algorithm>
#include <variant>

#include "kernels/process/check.h"

namespace diffserve {

void ResponseEncoder::Take(ResponseEvent event) {
  DS_CHECK(written(), "an event is written before the next one comes");
  if (answer_.done) return;
  if (auto* started = std::get_if<ResponseStarted>(&event)) {
    for (const PromptInfo& prompt : started->prompts)
      answer_.usage.prompt_tokens += static_cast<int64_t>(prompt.token_ids.size());
    writer_->OnStarted(std::move(*started));
  } else if (auto* prompt = std::get_if<ResponsePromptLogprobs>(&event)) {
    writer_->OnPromptLogprobs(std::move(*prompt), &answer_);
  } else if (auto* delta = std::get_if<ResponseDelta>(&event)) {
    answer_.usage.completion_tokens += static_cast<int64_t>(delta->tokens.size());
    answer_.usage.cached_tokens += delta->cached_tokens;
    answer_.times.prompt_s = std::max(answer_.times.prompt_s, delta->times.prompt_s);
    answer_.times.tokens_s = std::max(answer_.times.tokens_s, delta->times.tokens_s);
    writer_->OnDelta(std::move(*delta), &answer_);
  } else {
    auto& done = std::get<ResponseDone>(event);
    answer_.done = true;
    answer_.status = std::move(done.status);
    answer_.usage = done.usage;
    writer_->OnDone(&answer_);
  }
}

}  // namespace diffserve
