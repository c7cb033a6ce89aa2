// SPDX-License-Identifier: Apache-2.0
#include "server/api/vllm/request.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "server/api/fields/chat_fields.h"
#include "server/api/fields/sampling_fields.h"
#include "server/api/fields/structured_fields.h"
#include "server/api/json/json.h"
#include "server/serving/request_checks.h"

namespace diffserve {
namespace {

using Names = std::span<const std::string_view>;

constexpr size_t kMaxTokens = 1 << 20;
constexpr int kDefaultMaxTokens = 16;  // vLLM's own

constexpr std::string_view kTokenFields[] = {"token_ids",  "sampling_params", "model",
                                             "stream",     "priority",        "stream_options",
                                             "cache_salt", "request_id"};
// Members of a rendered prompt that are only informative.
constexpr std::string_view kHarmlessTokenFields[] = {"prompt"};
constexpr std::string_view kUnsupportedTokenFields[] = {"features", "kv_transfer_params",
                                                        "ec_transfer_params"};
// Members of sampling_params besides kGenerationFields.
constexpr std::string_view kSamplingFields[] = {"logprobs", "prompt_logprobs",
                                                "structured_outputs"};
constexpr std::string_view kHarmlessSampling[] = {"detokenize", "output_kind",
                                                  "spaces_between_special_tokens", "length_penalty",
                                                  "stream_interval"};
constexpr std::string_view kUnsupportedSampling[] = {
    "guided_decoding",      "logits_processors", "use_beam_search",
    "logprob_token_ids",    "flat_logprobs",     "thinking_token_budget",
    "repetition_detection", "early_stopping",    "skip_clone",
    "extra_args",           "vllm_xargs",        "prompt_embeds",
    "logits_processor"};

bool IsListed(Names names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

void Refuse(JsonFields& fields, Names unsupported, const std::string& path) {
  for (const std::string_view name : unsupported) {
    if (!fields.IsOff(name)) fields.Fail(Unsupported(path + std::string(name)));
  }
}

void RefuseUnknown(JsonFields& fields, std::span<const Names> known, const std::string& path) {
  for (const std::string& name : fields.Names()) {
    if (std::ranges::any_of(known, [&name](Names names) { return IsListed(names, name); }))
      continue;
    const std::string shown = path + name.substr(0, 64);
    fields.Fail(
        InvalidArgument("unknown member '" + shown + "' (the server runs with --strict)", shown));
  }
}

// `text`: the text that `params` was parsed from.
void ReadSamplingParams(JsonFields& params, std::string_view text, const ReadContext& context,
                        AnswerRequest* request) {
  const FrontendOptions& limits = *context.limits;
  GenerateRequest& generate = request->generate;
  const std::string path = "sampling_params.";
  Refuse(params, kUnsupportedSampling, path);
  ReadGeneration(params, limits, &generate);
  ReadStructuredOutputs(params, text, &generate);
  ReadLogprobs(params, "logprobs", limits, &generate.sampling.num_logprobs);
  ReadLogprobs(params, "prompt_logprobs", limits, &generate.prompt_logprobs);
  const Names known[] = {kGenerationFields, kSamplingFields, kHarmlessSampling,
                         kUnsupportedSampling};
  if (context.strict) RefuseUnknown(params, known, path);
}

}  // namespace

Result<TokenRequest> ParseTokenRequest(std::string_view body, const ReadContext& context) {
  Result<JsonFields> parsed = JsonFields::Parse(body);
  if (!parsed.ok()) return parsed.status();
  JsonFields& fields = *parsed;
  TokenRequest token_request;
  AnswerRequest& request = token_request.request;
  GenerateRequest& generate = request.generate;
  Refuse(fields, kUnsupportedTokenFields, "");
  generate.sampling = context.default_sampling;
  generate.max_tokens_default = kDefaultMaxTokens;
  fields.String("model", kMaxTextBytes, &generate.model);
  fields.String("request_id", kMaxRequestIdBytes, &token_request.request_id);
  fields.String("cache_salt", context.limits->max_cache_salt_bytes, &generate.cache_salt);
  fields.Int("priority", &generate.priority);
  ReadStream(fields, &request);
  std::vector<int32_t> ids;
  if (!fields.Has("token_ids")) fields.Fail(InvalidArgument("token_ids is missing", "token_ids"));
  fields.Ints("token_ids", kMaxTokens, &ids);
  generate.prompts.emplace_back(std::move(ids));
  for (JsonFields& params : fields.Object("sampling_params")) {
    ReadSamplingParams(params, MemberText(body, "sampling_params"), context, &request);
    fields.Fail(params.status());
  }
  const Names known[] = {kTokenFields, kHarmlessTokenFields, kUnsupportedTokenFields};
  if (context.strict) RefuseUnknown(fields, known, "");
  if (!fields.status().ok()) return fields.status();
  request.logprobs = generate.sampling.num_logprobs >= 0;
  generate.holds = request.stream ? AnswerHolds::kEvents : AnswerHolds::kTokens;
  return token_request;
}

Status TokenPromptError(const Status& status) {
  return status.param() == "prompt" ? Status(status.code(), status.message(), "token_ids") : status;
}

}  // namespace diffserve
