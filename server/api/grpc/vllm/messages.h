// SPDX-License-Identifier: Apache-2.0
// Converts between the messages of vLLM's engine service (proto/vllm/grpc/engine/vllm_engine.proto)
// and the Frontend's types. Unsupported fields are refused by name with kUnimplemented.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "models/diagnostics/hidden_state_pool.h"
#include "server/serving/frontend.h"
#include "server/serving/request/embedding_request.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace diffserve {

namespace vllm_v1 = ::vllm::grpc::engine;

struct VllmRequest {
  GenerateRequest generate;  // without the client's name
  bool stream = false;
};

// `defaults` has the values that vLLM leaves to the server: the seed. The Frontend checks ranges
// later. Error: kInvalidArgument or kUnimplemented with the field.
Result<VllmRequest> FromProto(const vllm_v1::GenerateRequest& message,
                              const SamplingSpec& defaults);
Result<EmbeddingRequest> FromProto(const vllm_v1::EmbedRequest& message,
                                   const SamplingSpec& defaults);

// Converts the events of one response to its messages.
// Thread safety: one thread at a time.
class VllmAnswer {
 public:
  explicit VllmAnswer(const VllmRequest& request);

  // Appends the messages of one event. An error gives none.
  void Append(const ResponseEvent& event, std::deque<vllm_v1::GenerateResponse>* out);

 private:
  using Messages = std::deque<vllm_v1::GenerateResponse>;
  struct Output {
    vllm_v1::GenerateComplete complete;
    PromptScores scores;  // until they are sent; nullptr: none
  };
  void AppendOne(const ResponseStarted& started, Messages* out);
  void AppendOne(const ResponsePromptLogprobs& scores, Messages* out);
  void AppendOne(const ResponseDelta& delta, Messages* out);
  void AppendOne(const ResponseDone& done, Messages* out);
  void FillPrompt(const PromptScores& scores, vllm_v1::InputLogProbs& out) const;

  const bool stream_;
  const int num_outputs_;  // checked by the Frontend when the first event comes
  const int num_logprobs_, num_prompt_logprobs_;  // alternatives; -1: none requested
  SharedTokens prompt_;
  std::vector<Output> outputs_;
};

// REQUIRES: there is one pool, complete, with an ok status.
void FillEmbedding(const std::vector<std::shared_ptr<HiddenStatePool>>& pools, const Usage& usage,
                   vllm_v1::EmbedResponse& out);
// `model_root`: where the model is.
void FillModelInfo(const Frontend& frontend, const std::string& model_root, int max_model_len,
                   vllm_v1::GetModelInfoResponse& out);
void FillServerInfo(const EngineStats& stats, std::chrono::steady_clock::duration uptime,
                    vllm_v1::GetServerInfoResponse& out);
// Error: kInvalidArgument, there is no such rank.
Status FillLoads(const vllm_v1::GetLoadsRequest& request, const EngineStats& stats,
                 const EngineOptions& engine, vllm_v1::GetLoadsResponse& out);

}  // namespace diffserve
