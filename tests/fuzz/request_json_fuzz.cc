// Request bodies of all five routes. The first byte chooses the route and strictness, the rest is
// the body. Whatever comes, it is parsed or refused; what is parsed and passes the checks keeps the
// promises that the engine relies on.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "server/openai/attention_request.h"
#include "server/openai/request.h"
#include "server/openai/response.h"
#include "tests/fuzz/checked_request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  diffserve::FrontendOptions limits;
  const diffserve::OpenAiContext context{&limits, diffserve::SamplingParams(), (data[0] & 4) != 0};
  diffserve::Status status;
  switch ((data[0] & 8) != 0 ? 8 : data[0] & 3) {
    case 8:
      status = diffserve::ParseAttentionRequest(body, context).status();
      break;
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
      status = parsed.ok() ? diffserve::CheckRequest(parsed->generate,
                                                     diffserve::testing::FuzzedLimits(limits))
                           : parsed.status();
      if (status.ok()) diffserve::testing::CheckPromises(parsed->generate, limits);
    }
  }
  if (!status.ok()) {
    DS_CHECK(!status.message().empty() && status.message().size() < 1000, "a refusal is a line");
    DS_CHECK(!diffserve::OpenAiErrorBody(status).empty(), "a refusal has a body");
  }
  return 0;
}
