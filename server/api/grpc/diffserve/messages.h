// SPDX-License-Identifier: Apache-2.0
// Converts between the messages of diffserve.v1 and the Frontend's types.
#pragma once

#include "models/diagnostics/hidden_state_pool.h"
#include "server/serving/answer/answer_request.h"
#include "server/serving/attention_call.h"
#include "server/serving/frontend.h"
#include "server/serving/request/embedding_request.h"

namespace diffserve {

namespace v1 {
class AttentionRequest;
class AttentionResponse;
class Chat;
class EmbedRequest;
class EmbedResponse;
class GenerateRequest;
class GetModelResponse;
class TokenizeRequest;
}  // namespace v1

// `defaults` fill in absent sampling parameters. The Frontend checks ranges later. Error: no
// prompt; a negative count where the Frontend has -1 for none; a grammar or a list of tools that is
// too long; a call that is not JSON; or tools that server/api/fields/tool_fields.h refuses.
Result<AnswerRequest> FromProto(const v1::GenerateRequest& message, const FrontendOptions& limits,
                                const SamplingSpec& defaults);
Result<Prompt> FromProto(const v1::TokenizeRequest& message);

// Error: an input without a prompt, no such pooling, or no dimensions.
Result<EmbeddingRequest> FromProto(const v1::EmbedRequest& message, const SamplingSpec& defaults);
// REQUIRES: the pools are complete, with an ok status.
void FillEmbeddings(const std::vector<std::shared_ptr<HiddenStatePool>>& pools, const Usage& usage,
                    v1::EmbedResponse& out);

// Error: no prompt. AttentionMapsCall checks the rest.
Result<AttentionRequest> FromProto(const v1::AttentionRequest& message);
// Message 0 is the start, message i item i - 1.
void Fill(const AttentionAnswer& answer, size_t i, v1::AttentionResponse& out);

void FillModel(const Frontend& frontend, const EngineOptions& engine, v1::GetModelResponse& out);

}  // namespace diffserve
