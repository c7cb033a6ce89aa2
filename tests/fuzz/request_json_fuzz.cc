// Request bodies of all four routes. The first byte chooses the route and strictness, the rest is
// the body. Whatever comes, it is parsed or refused; what is parsed and passes the checks keeps the
// promises that the engine relies on.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <variant>

#include "server/openai/request.h"
#include "server/openai/response.h"
#include "server/request_checks.h"

namespace {

constexpr int kVocabSize = 1000;
constexpr int kMaxModelLen = 4096;

void Require(bool condition) {
  if (!condition) std::abort();
}

void CheckPromises(const diffserve::OpenAiRequest& parsed,
                   const diffserve::FrontendOptions& limits) {
  const diffserve::GenerateRequest& request = parsed.generate;
  const diffserve::SamplingParams& sampling = request.sampling;
  Require(!request.prompts.empty() && request.prompts.size() <= limits.max_prompts);
  for (const diffserve::Prompt& prompt : request.prompts) {
    const auto* ids = std::get_if<std::vector<int32_t>>(&prompt);
    if (ids == nullptr) continue;
    Require(!ids->empty() && ids->size() <= static_cast<size_t>(kMaxModelLen));
    for (const int32_t id : *ids) Require(id >= 0 && id < kVocabSize);
  }
  Require(request.n >= 1 && request.n <= limits.max_n);
  Require(!request.max_tokens || (*request.max_tokens >= 0 && *request.max_tokens <= kMaxModelLen));
  Require(request.min_tokens >= 0 && request.min_tokens <= kMaxModelLen);
  Require(std::isfinite(sampling.temperature) && sampling.temperature >= 0);
  Require(sampling.top_p > 0 && sampling.top_p <= 1 && sampling.top_k >= 0 && sampling.min_p >= 0 &&
          sampling.min_p <= 1);
  Require(sampling.repetition_penalty > 0 && std::abs(sampling.presence_penalty) <= 2 &&
          std::abs(sampling.frequency_penalty) <= 2);
  Require(sampling.num_logprobs >= -1 && sampling.num_logprobs <= limits.max_logprobs);
  Require(request.prompt_logprobs >= -1 && request.prompt_logprobs <= limits.max_logprobs);
  for (const auto& [id, bias] : sampling.logit_bias)
    Require(id >= 0 && id < kVocabSize && std::abs(bias) <= 100);
  for (const int32_t id : request.stop_token_ids) Require(id >= 0 && id < kVocabSize);
  for (const std::string& stop : request.stop)
    Require(!stop.empty() && stop.size() <= limits.max_stop_bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  diffserve::FrontendOptions limits;
  const diffserve::OpenAiContext context{&limits, diffserve::SamplingParams(), (data[0] & 4) != 0};
  diffserve::Status status;
  switch (data[0] & 3) {
    case 2:
      status = diffserve::ParseTokenizeRequest(body, context).status();
      break;
    case 3:
      status = diffserve::ParseDetokenizeRequest(body, context).status();
      break;
    default: {
      const auto parse = (data[0] & 1) != 0 ? diffserve::ParseChatRequest
                                            : diffserve::ParseCompletionRequest;
      const auto parsed = parse(body, context);
      status = parsed.ok() ? diffserve::CheckRequest(parsed.value().generate,
                                                     {&limits, kVocabSize, kMaxModelLen, 256})
                           : parsed.status();
      if (status.ok()) CheckPromises(parsed.value(), limits);
    }
  }
  if (!status.ok()) {
    Require(!status.message().empty() && status.message().size() < 1000);
    Require(!diffserve::OpenAiErrorBody(status).empty());
  }
  return 0;
}
