// SPDX-License-Identifier: Apache-2.0
#include "server/serving/request/request_checks.h"

#include <charconv>
#include <limits>
#include <string>
#include <string_view>

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
  return InvalidArgument(std::string(param) + " is " + std::to_string(value) + "; allowed is " +
                             std::to_string(low) + " to " + std::to_string(high),
                         param);
}

Status CheckListSize(size_t size, size_t max_size, const char* param) {
  if (size <= max_size) return {};
  return InvalidArgument(std::string(param) + " has " + std::to_string(size) +
                             " entries; at most " + std::to_string(max_size) + " are allowed",
                         param);
}

Status CheckSampling(const SamplingParams& sampling, const RequestLimits& limits) {
  for (const auto& [name, member, range] : kSamplingNumbers)
    DS_RETURN_IF_ERROR(CheckNumber(sampling.*member, range, name));
  DS_RETURN_IF_ERROR(CheckCount(sampling.top_k, 0, std::numeric_limits<int>::max(), "top_k"));
  DS_RETURN_IF_ERROR(
      CheckListSize(sampling.logit_bias.size(), limits.options->max_logit_bias, "logit_bias"));
  for (const auto& [id, bias] : sampling.logit_bias) {
    if (id < 0 || id >= limits.vocab_size) {
      return InvalidArgument("logit_bias names token " + std::to_string(id) +
                                 "; the vocabulary has 0 to " +
                                 std::to_string(limits.vocab_size - 1),
                             "logit_bias");
    }
    DS_RETURN_IF_ERROR(CheckNumber(bias, kLogitBiasRange, "logit_bias"));
  }
  return sampling.num_logprobs == -1
             ? Status()
             : CheckLogprobs(sampling.num_logprobs, *limits.options, "logprobs");
}

Status CheckStops(const GenerateRequest& request, const RequestLimits& limits) {
  DS_RETURN_IF_ERROR(CheckListSize(request.stop.size(), limits.options->max_stop_strings, "stop"));
  size_t stop_bytes = 0;
  for (const std::string& stop : request.stop) {
    if (stop.empty()) return InvalidArgument("stop holds an empty string", "stop");
    stop_bytes += stop.size();
  }
  if (stop_bytes > limits.options->max_stop_bytes) {
    return InvalidArgument("the stop strings have " + std::to_string(stop_bytes) +
                               " bytes; at most " + std::to_string(limits.options->max_stop_bytes) +
                               " are allowed",
                           "stop");
  }
  DS_RETURN_IF_ERROR(CheckListSize(request.sampling.stop_token_ids.size(),
                                   limits.options->max_stop_token_ids, "stop_token_ids"));
  return CheckTokenIds(request.sampling.stop_token_ids, limits.vocab_size, "stop_token_ids");
}

Status CheckTokenRules(const GenerateRequest& request, const RequestLimits& limits) {
  const FrontendOptions& options = *limits.options;
  DS_RETURN_IF_ERROR(CheckListSize(request.allowed_token_ids.size(), options.max_allowed_token_ids,
                                   "allowed_token_ids"));
  DS_RETURN_IF_ERROR(
      CheckTokenIds(request.allowed_token_ids, limits.vocab_size, "allowed_token_ids"));
  DS_RETURN_IF_ERROR(CheckListSize(request.bad_words.size(), options.max_bad_words, "bad_words"));
  size_t bytes = 0;
  for (const std::string& word : request.bad_words) {
    if (word.empty()) return InvalidArgument("bad_words holds an empty string", "bad_words");
    bytes += word.size();
  }
  if (bytes > options.max_bad_words_bytes) {
    return InvalidArgument("the bad words have " + std::to_string(bytes) + " bytes; at most " +
                               std::to_string(options.max_bad_words_bytes) + " are allowed",
                           "bad_words");
  }
  if (!request.truncate_prompt_tokens || *request.truncate_prompt_tokens == -1) return {};
  const int kept = *request.truncate_prompt_tokens;
  if (kept >= 1 && kept <= limits.max_model_len) return {};
  return InvalidArgument("truncate_prompt_tokens is " + std::to_string(kept) +
                             "; allowed is 1 to " + std::to_string(limits.max_model_len) +
                             ", or -1 for what the context leaves",
                         "truncate_prompt_tokens");
}

Status CheckLengths(const GenerateRequest& request, const RequestLimits& limits) {
  const FrontendOptions& options = *limits.options;
  DS_RETURN_IF_ERROR(CheckCount(request.n, 1, options.max_n, "n"));
  const int64_t choices = static_cast<int64_t>(request.prompts.size()) * request.n;
  if (choices > limits.max_waiting_requests) {
    return InvalidArgument("prompts times n is " + std::to_string(choices) + "; at most " +
                               std::to_string(limits.max_waiting_requests) + " are allowed",
                           "n");
  }
  if (request.max_tokens) {
    const char* const name = request.max_tokens_name;
    if (*request.max_tokens < 0)
      return CheckCount(*request.max_tokens, 0, limits.max_model_len, name);
    if (request.max_tokens == 0 && request.sampling.prompt_logprobs < 0 &&
        request.capture == nullptr && request.pools.empty()) {
      return InvalidArgument(
          std::string(name) + " is 0; that is allowed only with prompt log-probabilities (echo)",
          name);
    }
    if (request.sampling.min_tokens > *request.max_tokens) {
      return InvalidArgument("min_tokens is " + std::to_string(request.sampling.min_tokens) +
                                 " and " + name + " only " + std::to_string(*request.max_tokens),
                             "min_tokens");
    }
  }
  DS_RETURN_IF_ERROR(
      CheckCount(request.sampling.min_tokens, 0, limits.max_model_len, "min_tokens"));
  return request.sampling.prompt_logprobs == -1
             ? Status()
             : CheckLogprobs(request.sampling.prompt_logprobs, options, "prompt_logprobs");
}

}  // namespace

Status CheckNumber(float value, const NumberRange& range, const std::string& param,
                   std::string_view written) {
  if (value >= range.low && value <= range.high) return {};
  const std::string least = range.low == kAboveZero ? "above 0" : Text(range.low);
  return InvalidArgument(
      param + " is " + std::string(written) + "; allowed is " + least + " to " + Text(range.high),
      param);
}

Status CheckLogprobs(int count, const FrontendOptions& options, const char* param) {
  return CheckCount(count, 0, options.max_logprobs, param);
}

Status CheckRole(std::string_view role, const std::string& path, ToolMessages tools) {
  for (const char* allowed : {"system", "developer", "user", "assistant"}) {
    if (role == allowed) return {};
  }
  const bool or_tool = tools == ToolMessages::kAllowed;
  if (or_tool && role == "tool") return {};
  return InvalidArgument(path + ".role must be system, developer, user" +
                             (or_tool ? ", assistant or tool" : " or assistant"),
                         path + ".role");
}

Status CheckTokenIds(const std::vector<int32_t>& ids, int vocab_size, const char* param) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size) {
      return InvalidArgument("token id " + std::to_string(id) + " is not in the vocabulary: 0 to " +
                                 std::to_string(vocab_size - 1),
                             param);
    }
  }
  return {};
}

Status CheckNeedsNoTokenizer(const GenerateRequest& request) {
  for (const Prompt& prompt : request.prompts) {
    if (std::holds_alternative<Conversation>(prompt)) return NoTokenizer("a chat", "messages");
    if (std::holds_alternative<std::string>(prompt)) return NoTokenizer("a text", "prompt");
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
  const FrontendOptions& options = *limits.options;
  DS_RETURN_IF_ERROR(options.CheckModel(request.model));
  if (request.prompts.empty()) return InvalidArgument("there is no prompt", "prompt");
  DS_RETURN_IF_ERROR(CheckListSize(request.prompts.size(), options.max_prompts, "prompt"));
  for (const Prompt& prompt : request.prompts) {
    const auto* ids = std::get_if<std::vector<int32_t>>(&prompt);
    if (ids == nullptr) continue;
    if (ids->empty()) return InvalidArgument("a prompt is empty", "prompt");
    if (!request.truncate_prompt_tokens &&
        ids->size() >= static_cast<size_t>(limits.max_model_len) + 1) {
      return PromptTooLong(ids->size(), limits.max_model_len, limits.max_model_len, "", "prompt");
    }
    DS_RETURN_IF_ERROR(CheckTokenIds(*ids, limits.vocab_size, "prompt"));
  }
  DS_RETURN_IF_ERROR(CheckLengths(request, limits));
  DS_RETURN_IF_ERROR(CheckSampling(request.sampling, limits));
  DS_RETURN_IF_ERROR(CheckStops(request, limits));
  DS_RETURN_IF_ERROR(CheckTokenRules(request, limits));
  if (request.cache_salt.size() > options.max_cache_salt_bytes) {
    return InvalidArgument("cache_salt has " + std::to_string(request.cache_salt.size()) +
                               " bytes; at most " + std::to_string(options.max_cache_salt_bytes) +
                               " are allowed",
                           "cache_salt");
  }
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
      DS_RETURN_IF_ERROR(CheckTextFits(*text, limits, "prompt"));
  }
  return {};
}

}  // namespace diffserve
