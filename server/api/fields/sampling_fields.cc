// SPDX-License-Identifier: Apache-2.0
#include "server/api/fields/sampling_fields.h"

#include <string>

#include "kernels/base/refusal.h"
#include "server/api/fields/chat_fields.h"
#include "server/serving/request/request_checks.h"
#include "server/serving/request/sampling_numbers.h"

namespace diffserve {
namespace {

void ReadNumbers(JsonFields& fields, SamplingParams* sampling) {
  for (const auto& [name, member, range] : kSamplingNumbers) {
    if (!fields.Has(name)) continue;
    fields.Float(name, &(sampling->*member));
    fields.Fail(CheckNumber(sampling->*member, range, name, fields.NumberText(name)));
  }
  fields.Int("top_k", &sampling->top_k);
  if (sampling->top_k == -1) sampling->top_k = 0;  // both mean off
  const auto check_bias = [path = fields.PathOf("logit_bias")](float bias,
                                                               const std::string& written) {
    return CheckNumber(bias, kLogitBiasRange, path, written);
  };
  fields.LogitBias("logit_bias", kMaxLogitBias, check_bias, &sampling->logit_bias);
  fields.Seed("seed", &sampling->seed);
}

void ReadLengths(JsonFields& fields, GenerateRequest* request) {
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    if (!fields.Has(name)) continue;
    fields.Count(name, &request->max_tokens.emplace());
    request->names.max_tokens = name;
  }
  fields.Count("n", &request->n);
  int best_of = request->n;
  fields.Count("best_of", &best_of);
  if (best_of == 1 || best_of == request->n) return;
  fields.Fail(NotAllowed(
      "best_of is " + std::to_string(best_of),
      "1, or n, which is " + std::to_string(request->n) +
          "; every continuation is returned: ask for a larger n with logprobs, and choose",
      "best_of"));
}

void ReadTokenRules(JsonFields& fields, GenerateRequest* request) {
  fields.Ints("allowed_token_ids", kMaxAllowedTokenIds, &request->allowed_token_ids);
  if (fields.Has("allowed_token_ids") && request->allowed_token_ids.empty()) {
    fields.Fail(IsEmpty("allowed_token_ids", "at least 1 token id; leave it out to allow all"));
  }
  fields.StringOrStrings("bad_words", kMaxBadWords, &request->bad_words);
}

void ReadTruncation(JsonFields& fields, GenerateRequest* request) {
  if (fields.Has("truncate_prompt_tokens"))
    fields.Count("truncate_prompt_tokens", &request->truncate_prompt_tokens.emplace());
  std::string side = "left";
  fields.String("truncation_side", kMaxNameBytes, &side);
  request->truncate_right = side == "right";
  if (side != "left" && side != "right")
    fields.Fail(NotOneOf("truncation_side", side, "left, right"));
}

}  // namespace

void ReadStream(JsonFields& fields, AnswerRequest* request) {
  fields.Bool("stream", &request->stream);
  for (JsonFields& options : fields.Object("stream_options")) {
    options.Bool("include_usage", &request->include_usage);
    options.Bool("continuous_usage_stats", &request->continuous_usage);
    fields.Fail(options.status());
    if (!request->stream && (request->include_usage || request->continuous_usage))
      fields.Fail(OnlyWith("stream_options", "stream"));
  }
}

void ReadSampling(JsonFields& fields, GenerateRequest* request) {
  ReadNumbers(fields, &request->sampling);
  fields.Int("min_tokens", &request->sampling.min_tokens);
  fields.Ints("stop_token_ids", kMaxStopTokenIds, &request->sampling.stop_token_ids);
  fields.Bool("include_stop_str_in_output", &request->include_stop_str_in_output);
  fields.Bool("ignore_eos", &request->sampling.ignore_eos);
  fields.Bool("skip_special_tokens", &request->skip_special_tokens);
}

void ReadStops(JsonFields& fields, GenerateRequest* request) {
  const bool says_nothing = fields.IsString("stop") && fields.IsOff("stop");
  if (!says_nothing) fields.StringOrStrings("stop", kMaxStopStrings, &request->stop);
}

void ReadGeneration(JsonFields& fields, GenerateRequest* request) {
  ReadSampling(fields, request);
  ReadLengths(fields, request);
  ReadStops(fields, request);
  ReadTokenRules(fields, request);
  ReadTruncation(fields, request);
}

void ReadLogprobs(JsonFields& fields, const char* name, int* out) {
  if (!fields.Has(name)) return;
  fields.Int(name, out);
  fields.Fail(CheckLogprobs(*out, name));
}

}  // namespace diffserve
