// Between the messages of diffserve.v1 and the Frontend's own types.
#pragma once

#include <deque>
#include <string>

#include "server/attention_call.h"
#include "server/frontend.h"

namespace diffserve {

namespace v1 {
class AttentionRequest;
class AttentionResponse;
class Chat;
class GenerateRequest;
class GenerateResponse;
class GetModelResponse;
class TokenizeRequest;
}  // namespace v1

// `defaults` stand for sampling parameters that the request does not have. The Frontend checks
// ranges later. Error: no prompt, a count out of range for which the Frontend has -1 for none, a
// grammar or a list of tools that is too long, or a tool or a call that is not JSON.
Result<GenerateRequest> FromProto(const v1::GenerateRequest& message, const FrontendOptions& limits,
                                  const SamplingParams& defaults);
Result<Prompt> FromProto(const v1::TokenizeRequest& message, const FrontendOptions& limits);

// What the messages of an answer depend on beside its events.
struct AnswerShape {
  std::string request_id;
  bool logprobs = false;
  const Tokenizer& tokenizer;
};

// Appends the messages that one event becomes; ResponseDone becomes its usage if it is ok.
void AppendMessages(const ResponseEvent& event, const AnswerShape& shape,
                    std::deque<v1::GenerateResponse>& out);

// Error: no prompt. AttentionCall checks the rest.
Result<AttentionRequest> FromProto(const v1::AttentionRequest& message,
                                   const FrontendOptions& limits);
// Message 0 is the start, message i item i - 1.
void Fill(const AttentionAnswer& answer, size_t i, v1::AttentionResponse& out);

void FillModel(const Frontend& frontend, const EngineOptions& engine, v1::GetModelResponse& out);

}  // namespace diffserve
