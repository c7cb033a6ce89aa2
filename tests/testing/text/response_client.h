// SPDX-License-Identifier: Apache-2.0
// ResponseClient: collects the events of a stream of Responses. Also makes events of the engine and
// results of the text work.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/text/responses.h"
#include "tests/testing/text/text_fixture.h"

namespace diffserve {

// Collects the events of its stream.
struct Client {
  explicit Client(size_t max_bytes = 1 << 20)
      : stream(std::make_shared<ResponseStream>(max_bytes, nullptr)) {}

  void Read();

  std::shared_ptr<ResponseStream> stream;
  int started = 0;
  std::map<int, std::string> text;
  std::map<int, std::vector<SampleResult>> tokens;
  std::map<int, ResponseDelta> last;
  int64_t cached_tokens = 0;  // of all deltas
  std::vector<ResponsePromptLogprobs> prompt_logprobs;
  std::vector<ResponseDone> done;

 private:
  void Take(ResponseEvent event);
};

TokenEvent Event(RequestId id, std::vector<int32_t> tokens,
                 FinishReason finish = FinishReason::kNone);

// `n` continuations of each prompt; `prompt_tokens` are the prompts' lengths.
TokenizedRequest Ask(const std::vector<int>& prompt_tokens, int n);

}  // namespace diffserve
