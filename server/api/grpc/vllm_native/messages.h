// SPDX-License-Identifier: Apache-2.0
// Converts between the messages of vLLM's own gRPC (proto/vllm) and the Frontend's types. A field
// that asks for what is not served is refused by name.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "server/observe/kv_event_source.h"
#include "server/serving/frontend.h"
#include "vllm/control.pb.h"
#include "vllm/inference.pb.h"

namespace diffserve {

namespace native_v1 = ::vllm;

struct NativeRequest {
  GenerateRequest generate;  // without the client's name
  bool whole = false;        // the answer is one message
  bool shows_text = true, shows_token_ids = false, shows_prompt_ids = false;
};

// `defaults`: what an unset field means. The Frontend checks ranges later. Error: kInvalidArgument
// with the field.
Result<NativeRequest> FromProto(const native_v1::GenerateRequest& message,
                                const SamplingSpec& defaults, bool whole);

// Converts the events of one response to its messages.
// Thread safety: one thread at a time.
class NativeAnswer {
 public:
  explicit NativeAnswer(const NativeRequest& request);

  // Appends the messages of one event. An error gives none.
  void Append(const ResponseEvent& event, std::deque<native_v1::GenerateResponse>* out);

 private:
  using Messages = std::deque<native_v1::GenerateResponse>;
  struct Sequence {
    std::string text;         // came without a token; goes out with the next one
    uint32_t num_tokens = 0;  // sent
  };
  void AppendOne(const ResponseStarted& started, Messages* out);
  void AppendOne(const ResponsePromptLogprobs& scores, Messages* out);
  void AppendOne(const ResponseDelta& delta, Messages* out);
  void AppendOne(const ResponseDone& done, Messages* out);
  void FillPrompt(native_v1::PromptInfo& out) const;
  void FillTokens(const ResponseDelta& delta, native_v1::SequenceOutput& out) const;

  const bool whole_, shows_text_, shows_token_ids_, shows_prompt_ids_;
  const int num_logprobs_;  // alternatives; -1: no scores are requested
  SharedTokens prompt_;
  PromptScores scores_;  // of the prompt; nullptr: none are requested
  bool has_begun_ = false;
  std::vector<Sequence> sequences_;
  native_v1::GenerateResponse collected_;  // the whole answer
};

// `model_root`: where the model is.
void FillModelInfo(const Frontend& frontend, const std::string& model_root,
                   native_v1::ModelInfo& out);
void FillServerInfo(const EngineOptions& engine, const std::string& instance_id,
                    native_v1::ServerInfo& out);
void FillKvEventSources(const std::optional<KvEventSource>& source,
                        native_v1::GetKvEventSourcesResponse& out);

}  // namespace diffserve
