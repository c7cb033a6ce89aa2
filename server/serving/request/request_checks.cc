// SPDX-License-Identifier: Apache-2.0
#include "server/serving/request/request_checks.h"

#include <charconv>
#include <limits>
#include <string>
#include <string_view>

#include "kernels/base/refusal.h"
#include "server/serving/request/context_overflow.h"

namespace diffserve {
namespace {

// The shortest number that is read as this one.
std::string Text(float value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

Status CheckNumber(float value, const NumberRange& range, const char* param) {
  return CheckNumber(value, range, param, Text(value));
}

Status CheckCount(int64_t value, int64_t low, int64_t high, const char* param) {
  if (value >= low && value <= high) return {};
  return OutOfRange(param, value, low, high);
}

Status CheckListSize(size_t size, size_t max_size, const char* param) {
  if (size <= max_size) return {};
  return TooMany(param, size, "entries", max_size);
}

Status CheckSampling(const GenerateRequest& request, const RequestLimits& limits) {
  const SamplingSpec& sampling = request.sampling;
  for (const auto& [name, member, range] : kSamplingNumbers)
    DS_RETURN_IF_ERROR(CheckNumber(sampling.*member, range, name));
  DS_RETURN_IF_ERROR(CheckCount(sampling.top_k, 0, std::numeric_limits<int>::max(), "top_k"));
  DS_RETURN_IF_ERROR(CheckListSize(sampling.logit_bias.size(), kMaxLogitBias, "logit_bias"));
  for (const auto& [id, bias] : sampling.logit_bias) {
    if (id < 0 || id >= limits.vocab_size) {
      return NotAllowed("logit_bias has the token id " + std::to_string(id),
                        RangeText(0, limits.vocab_size - 1), "logit_bias");
    }
    DS_RETURN_IF_ERROR(CheckNumber(bias, kLogitBiasRange, "logit_bias"));
  }
  return sampling.num_logprobs == -1 ? Status()
                                     : CheckLogprobs(sampling.num_logprobs, request.names.logprobs);
}

Status CheckStops(const GenerateRequest& request, const RequestLimits& limits) {
  DS_RETURN_IF_ERROR(CheckListSize(request.stop.size(), kMaxStopStrings, "stop"));
  size_t stop_bytes = 0;
  for (const std::string& stop : request.stop) {
    if (stop.empty())
      return NotAllowed("stop has an empty string", "texts that are not empty", "stop");
    stop_bytes += stop.size();
  }
  if (stop_bytes > kMaxStopBytes) return TooMany("stop", stop_bytes, "bytes", kMaxStopBytes);
  DS_RETURN_IF_ERROR(
      CheckListSize(request.sampling.stop_token_ids.size(), kMaxStopTokenIds, "stop_token_ids"));
  return CheckTokenIds(request.sampling.stop_token_ids, limits.vocab_size, "stop_token_ids");
}

Status CheckTokenRules(const GenerateRequest& request, const RequestLimits& limits) {
  DS_RETURN_IF_ERROR(
      CheckListSize(request.allowed_token_ids.size(), kMaxAllowedTokenIds, "allowed_token_ids"));
  DS_RETURN_IF_ERROR(
      CheckTokenIds(request.allowed_token_ids, limits.vocab_size, "allowed_token_ids"));
  DS_RETURN_IF_ERROR(CheckListSize(request.bad_words.size(), kMaxBadWords, "bad_words"));
  size_t bytes = 0;
  for (const std::string& word : request.bad_words) {
    if (word.empty())
      return NotAllowed("bad_words has an empty string", "texts that are not empty", "bad_words");
    bytes += word.size();
  }
  if (bytes > kMaxBadWordsBytes) return TooMany("bad_words", bytes, "bytes", kMaxBadWordsBytes);
  if (!request.truncate_prompt_tokens || *request.truncate_prompt_tokens == -1) return {};
  const int kept = *request.truncate_prompt_tokens;
  if (kept >= 1 && kept <= limits.max_model_len) return {};
  return NotAllowed("truncate_prompt_tokens is " + std::to_string(kept),
                    RangeText(1, limits.max_model_len) + ", or -1 for what the context leaves",
                    "truncate_prompt_tokens");
}

Status CheckLengths(const GenerateRequest& request, const RequestLimits& limits) {
  DS_RETURN_IF_ERROR(CheckCount(request.n, 1, kMaxN, request.names.n));
  const int64_t choices = static_cast<int64_t>(request.prompts.size()) * request.n;
  if (choices > limits.max_waiting_requests) {
    return NotAllowed("prompts times n is " + std::to_string(choices),
                      "at most " + std::to_string(limits.max_waiting_requests), request.names.n);
  }
  if (request.max_tokens) {
    const char* const name = request.names.max_tokens;
    if (*request.max_tokens < 0)
      return CheckCount(*request.max_tokens, 0, limits.max_model_len, name);
    if (request.max_tokens == 0 && request.sampling.prompt_logprobs < 0 &&
        request.capture == nullptr && request.pools.empty()) {
      return NotAllowed(std::string(name) + " is 0",
                        "at least 1, or 0 with prompt log-probabilities (echo)", name);
    }
    if (request.sampling.min_tokens > *request.max_tokens) {
      return NotAllowed("min_tokens is " + std::to_string(request.sampling.min_tokens),
                        "at most " + std::to_string(*request.max_tokens) + ", which is " + name,
                        "min_tokens");
    }
  }
  DS_RETURN_IF_ERROR(
      CheckCount(request.sampling.min_tokens, 0, limits.max_model_len, "min_tokens"));
  return request.sampling.prompt_logprobs == -1
             ? Status()
             : CheckLogprobs(request.sampling.prompt_logprobs, "prompt_logprobs");
}

}  // namespace

Status CheckNumber(float value, const NumberRange& range, const std::string& param,
                   std::string_view written) {
  if (value >= range.low && value <= range.high) return {};
  const std::string least = range.low == kAboveZero ? "above 0" : Text(range.low);
  return NotAllowed(param + " is " + std::string(written), least + " to " + Text(range.high),
                    param);
}

Status CheckLogprobs(int count, const char* param) {
  return CheckCount(count, 0, kMaxLogprobs, param);
}

Status CheckRole(std::string_view role, const std::string& path, ToolMessages tools) {
  for (const char* allowed : {"system", "developer", "user", "assistant"}) {
    if (role == allowed) return {};
  }
  const bool or_tool = tools == ToolMessages::kAllowed;
  if (or_tool && role == "tool") return {};
  return NotOneOf(path + ".role", role,
                  std::string("system, developer, user, assistant") + (or_tool ? ", tool" : ""));
}

Status CheckTokenIds(const std::vector<int32_t>& ids, int vocab_size, const char* param) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size) {
      return NotAllowed(std::string(param) + " has the token id " + std::to_string(id),
                        RangeText(0, vocab_size - 1), param);
    }
  }
  return {};
}

Status CheckNeedsNoTokenizer(const GenerateRequest& request) {
  for (const Prompt& prompt : request.prompts) {
    if (std::holds_alternative<Conversation>(prompt))
      return NoTokenizer("a chat", request.names.messages);
    if (std::holds_alternative<std::string>(prompt))
      return NoTokenizer("a text", request.names.prompt);
  }
  if (request.grammar) return NoTokenizer(request.grammar->param, request.grammar->param);
  if (!request.stop.empty()) {
    return InvalidArgument(
        "stop needs a tokenizer, and this model has no tokenizer.json; use "
        "stop_token_ids",
        "stop");
  }
  if (!request.bad_words.empty()) return NoTokenizer("bad_words", "bad_words");
  if (request.want_prompt_text) return NoTokenizer("echo", "echo");
  return {};
}

Status CheckRequest(const GenerateRequest& request, const RequestLimits& limits) {
  const char* const prompt_name = request.names.prompt;
  DS_RETURN_IF_ERROR(limits.names->Check(request.model));
  if (request.prompts.empty()) return Missing(prompt_name);
  DS_RETURN_IF_ERROR(CheckListSize(request.prompts.size(), kMaxPrompts, prompt_name));
  for (const Prompt& prompt : request.prompts) {
    const auto* ids = std::get_if<std::vector<int32_t>>(&prompt);
    if (ids == nullptr) continue;
    if (ids->empty())
      return NotAllowed(std::string(prompt_name) + " has no tokens", "at least 1", prompt_name);
    if (!request.truncate_prompt_tokens &&
        ids->size() >= static_cast<size_t>(limits.max_model_len) + 1) {
      return PromptTooLong(ids->size(), limits.max_model_len, limits.max_model_len, "",
                           prompt_name);
    }
    DS_RETURN_IF_ERROR(CheckTokenIds(*ids, limits.vocab_size, prompt_name));
  }
  DS_RETURN_IF_ERROR(CheckLengths(request, limits));
  DS_RETURN_IF_ERROR(CheckSampling(request, limits));
  DS_RETURN_IF_ERROR(CheckStops(request, limits));
  DS_RETURN_IF_ERROR(CheckTokenRules(request, limits));
  if (request.cache_salt.size() > kMaxCacheSaltBytes)
    return TooMany("cache_salt", request.cache_salt.size(), "bytes", kMaxCacheSaltBytes);
  return {};
}

Status CheckTextFits(std::string_view text, const RequestLimits& limits, const char* param) {
  if (limits.max_token_bytes == 0) return {};
  const size_t least = (text.size() + limits.max_token_bytes - 1) / limits.max_token_bytes;
  if (least <= static_cast<size_t>(limits.max_model_len)) return {};
  return PromptTooLong(least, limits.max_model_len, limits.max_model_len,
                       " (" + std::to_string(text.size()) + " bytes have at least that many)",
                       param);
}

Status CheckTextsFit(const GenerateRequest& request, const RequestLimits& limits) {
  if (request.truncate_prompt_tokens) return {};  // the prompt is truncated
  for (const Prompt& prompt : request.prompts) {
    if (const auto* text = std::get_if<std::string>(&prompt))
      DS_RETURN_IF_ERROR(CheckTextFits(*text, limits, request.names.prompt));
  }
  return {};
}

}  // namespace diffserve
