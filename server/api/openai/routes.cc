// SPDX-License-Identifier: Apache-2.0
#include "server/api/openai/routes.h"

#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/api/api_context.h"
#include "server/api/openai/embedding_reply.h"
#include "server/api/openai/embedding_request.h"
#include "server/api/openai/encoder.h"
#include "server/api/openai/request.h"
#include "server/api/openai/text_routes.h"
#include "server/http/url.h"
#include "server/serving/request/served_names.h"

namespace diffserve {
namespace {

constexpr std::string_view kModelPrefix = "/v1/models/";

HttpAnswer Generate(ApiContext& api, RouteCall& call, Result<OpenAiRequest> parsed) {
  if (!parsed.ok()) return api.Refused(parsed.status());
  if (api.frontend.tokenizer().is_missing() && !parsed->chat && !parsed->return_token_ids) {
    return api.Refused(
        InvalidArgument("this model has no tokenizer.json, so an answer has no text: set "
                        "return_token_ids to get its token ids",
                        "return_token_ids"));
  }
  const OpenAiIdentity identity = {OpenAiId(call, parsed->chat), api.model_name(),
                                   api.options.fingerprint, std::time(nullptr)};
  auto writer = std::make_unique<OpenAiResponse>(*parsed, identity, api.token_texts());
  return api.StartResponse(call, {std::move(parsed->generate), std::move(writer), parsed->stream});
}

// `pooling_id` as in EmbeddingReply::Form.
HttpAnswer PoolStates(ApiContext& api, RouteCall& call, Result<EmbeddingRequest> parsed,
                      std::string pooling_id) {
  if (!parsed.ok()) return api.Refused(parsed.status());
  const Frontend& frontend = api.frontend;
  if (const Status status = AddPools(frontend.model_config().hidden_size, &*parsed); !status.ok())
    return api.Refused(status);
  auto reply = std::make_unique<EmbeddingReply>(
      parsed->generate.pools, EmbeddingReply::Form{parsed->base64, api.model_name(),
                                                   std::move(pooling_id), std::time(nullptr)});
  return api.StartResponse(call, {std::move(parsed->generate), std::move(reply),
                                  /*streams=*/false});
}

HttpAnswer Embeddings(ApiContext& api, RouteCall& call, Result<EmbeddingRequest> parsed) {
  return PoolStates(api, call, std::move(parsed), "");
}

HttpAnswer Pooling(ApiContext& api, RouteCall& call, Result<EmbeddingRequest> parsed) {
  return PoolStates(api, call, std::move(parsed), "pool-" + call.account.request_id);
}

ModelCard CardOf(const ApiContext& api, const std::string& name) {
  return {name, api.options.model_root, api.frontend.engine().options().max_model_len, api.created};
}

HttpAnswer Models(ApiContext& api, RouteCall&) {
  std::vector<ModelCard> cards = {CardOf(api, api.model_name())};
  for (const std::string& name : api.frontend.options().names.further)
    cards.push_back(CardOf(api, name));
  return JsonReply(ModelListBody(cards));
}

HttpAnswer Model(ApiContext& api, RouteCall& call) {
  const std::string name = PercentDecoded(
      std::string_view(call.request.head.path).substr(kModelPrefix.size()));
  const FrontendOptions& options = api.frontend.options();
  if (!options.names.Has(name)) return api.Error(UnknownModel(name, options.names.All()));
  return JsonReply(ModelBody(CardOf(api, name)));
}

}  // namespace

Api OpenAiApi() {
  return {{
      {"POST", "/v1/completions", OnBody(ParseCompletionRequest, Generate)},
      {"POST", "/v1/chat/completions", OnBody(ParseChatRequest, Generate)},
      {"POST", "/v1/embeddings", OnBody(ParseEmbeddingRequest, Embeddings)},
      {"POST", "/pooling", OnBody(ParsePoolingRequest, Pooling)},
      {"POST", "/tokenize", OnBody(ParseTokenizeRequest, TokenizeText)},
      {"POST", "/detokenize", OnBody(ParseDetokenizeRequest, DetokenizeIds)},
      {"POST", "/v1/completions/render", OnBody(ParseCompletionRequest, RenderRequest)},
      {"POST", "/v1/chat/completions/render", OnBody(ParseChatRequest, RenderRequest)},
      {"GET", "/v1/models", Models},
      {"GET", kModelPrefix, Model},
  }};
}

}  // namespace diffserve
