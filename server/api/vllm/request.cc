// SPDX-License-Identifier: Apache-2.0
#include "server/api/vllm/request.h"

#include <utility>
#include <vector>

#include "kernels/base/refusal.h"
#include "server/api/fields/chat_fields.h"
#include "server/api/fields/sampling_fields.h"
#include "server/api/fields/structured_fields.h"
#include "server/json/json.h"
#include "server/serving/request/request_checks.h"

namespace diffserve {
namespace {

constexpr size_t kMaxTokens = 1 << 20;
constexpr int kDefaultMaxTokens = 16;  // vLLM's own

// `text`: the text that `params` was parsed from.
void ReadSamplingParams(JsonFields& params, std::string_view text, AnswerRequest* request) {
  GenerateRequest& generate = request->generate;
  CheckMembers(params, members::kTokenSamplingTables);
  ReadGeneration(params, &generate);
  ReadStructuredOutputs(params, text, &generate);
  ReadLogprobs(params, "logprobs", &generate.sampling.num_logprobs);
  ReadLogprobs(params, "prompt_logprobs", &generate.sampling.prompt_logprobs);
}

}  // namespace

Result<TokenRequest> ParseTokenRequest(std::string_view body, const ReadContext& context) {
  Result<JsonFields> parsed = JsonFields::Parse(body);
  if (!parsed.ok()) return parsed.status();
  JsonFields& fields = *parsed;
  TokenRequest token_request;
  AnswerRequest& request = token_request.request;
  GenerateRequest& generate = request.generate;
  CheckMembers(fields, members::kTokenTables);
  generate.names.prompt = "token_ids";
  generate.sampling = context.default_sampling;
  generate.max_tokens_default = kDefaultMaxTokens;
  fields.String("model", kMaxTextBytes, &generate.model);
  fields.String("request_id", kMaxRequestIdBytes, &token_request.request_id);
  fields.String("cache_salt", kMaxCacheSaltBytes, &generate.cache_salt);
  fields.Int("priority", &generate.priority);
  ReadStream(fields, &request);
  std::vector<int32_t> ids;
  if (!fields.Has("token_ids")) fields.Fail(Missing("token_ids"));
  fields.Ints("token_ids", kMaxTokens, &ids);
  generate.prompts.emplace_back(std::move(ids));
  for (JsonFields& params : fields.Object("sampling_params")) {
    ReadSamplingParams(params, MemberText(body, "sampling_params"), &request);
    fields.Fail(params.status());
  }
  if (!fields.status().ok()) return fields.status();
  request.logprobs = generate.sampling.num_logprobs >= 0;
  generate.holds = request.stream ? AnswerHolds::kEvents : AnswerHolds::kTokens;
  return token_request;
}

}  // namespace diffserve
