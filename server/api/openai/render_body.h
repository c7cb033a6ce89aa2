// SPDX-License-Identifier: Apache-2.0
// The reply of /v1/completions/render and /v1/chat/completions/render: a body that
// /inference/v1/generate accepts, and the prompt's text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/serving/frontend.h"

namespace diffserve {

struct RenderedPrompt {
  std::string request_id;
  std::string model;
  std::string text;
  std::vector<int32_t> token_ids;
  int max_tokens = 0;
};
// REQUIRES: a grammar of the request has a StructuredOutputsText.
std::string RenderBody(const RenderedPrompt& prompt, const GenerateRequest& request);

}  // namespace diffserve
