// SPDX-License-Identifier: Apache-2.0
// Request bodies of all six routes. The first byte chooses the route, the rest is the body.
// Whatever comes, it is parsed or refused; what is parsed and passes the checks keeps the promises
// that the engine relies on.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "server/api/attention/request.h"
#include "server/api/openai/embedding_request.h"
#include "server/api/openai/encoder.h"
#include "server/api/openai/request.h"
#include "server/api/vllm/request.h"
#include "tests/fuzz/checked_request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  diffserve::FrontendOptions limits;
  const diffserve::ReadContext context{&limits, diffserve::SamplingSpec()};
  diffserve::Status status;
  const auto check = [&limits](const diffserve::AnswerRequest& request) {
    const diffserve::Status checked = diffserve::CheckRequest(
        request.generate, diffserve::testing::FuzzedLimits(limits.names));
    if (checked.ok()) diffserve::testing::CheckPromises(request.generate);
    return checked;
  };
  const int bits = data[0];
  switch ((bits & 128) != 0 ? 128 : (bits & 64) != 0 ? 64 : (bits & 8) != 0 ? 8 : bits & 3) {
    case 64: {
      const auto parsed = diffserve::ParseTokenRequest(body, context);
      status = parsed.ok() ? check(parsed->request) : parsed.status();
      break;
    }
    case 8:
      status = diffserve::ParseAttentionRequest(body, context).status();
      break;
    case 128: {
      auto parsed = diffserve::ParseEmbeddingRequest(body, context);
      (void)diffserve::ParsePoolingRequest(body, context);
      status = parsed.ok() ? diffserve::AddPools(/*hidden_size=*/64, &*parsed) : parsed.status();
      if (status.ok()) {
        status = diffserve::CheckRequest(parsed->generate,
                                         diffserve::testing::FuzzedLimits(limits.names));
      }
      break;
    }
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
      status = parsed.ok() ? check(*parsed) : parsed.status();
    }
  }
  if (!status.ok()) {
    DS_CHECK(!status.message().empty() && status.message().size() < 1000, "a refusal is a line");
    DS_CHECK(!diffserve::OpenAiErrorBody(status).empty(), "a refusal has a body");
  }
  return 0;
}
