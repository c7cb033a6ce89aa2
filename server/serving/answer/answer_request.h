// SPDX-License-Identifier: Apache-2.0
// AnswerRequest: what to generate, and how the answer is read and sent, for every API.
#pragma once

#include "server/serving/answer/answer_parser.h"
#include "server/serving/request/generate_request.h"

namespace diffserve {

struct AnswerRequest {
  GenerateRequest generate;
  bool chat = false;
  bool stream = false;
  bool include_usage = false;     // of a stream: in a last event
  bool continuous_usage = false;  // and in each event
  bool logprobs = false;          // generate.sampling.num_logprobs: how many alternatives
  AnswerForm answer;              // of a chat: how the answer's text is read
  bool include_reasoning = true;  // false: reasoning is parsed and omitted
  // Special tokens are shown because the format's markers need them; the token that ends the text
  // is hidden.
  bool hides_eos = false;
};

}  // namespace diffserve
