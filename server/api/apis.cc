// SPDX-License-Identifier: Apache-2.0
#include "server/api/apis.h"

#include "server/api/anthropic/routes.h"
#include "server/api/attention/routes.h"
#include "server/api/openai/routes.h"
#include "server/api/ops/routes.h"
#include "server/api/responses/routes.h"
#include "server/api/vllm/routes.h"

namespace diffserve {

std::vector<Api> AllApis(const HttpRoutesOptions& options) {
  return {
      OpenAiApi(),     //
      AnthropicApi(),  //
      ResponsesApi(),  //
      AttentionApi(),  //
      VllmApi(),       //
      OpsApi(options),
  };
}

}  // namespace diffserve
