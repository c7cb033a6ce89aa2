// SPDX-License-Identifier: Apache-2.0
#include "server/api/openai/text_routes.h"

#include <memory>
#include <utility>
#include <vector>

#include "server/api/fields/structured_fields.h"
#include "server/api/openai/encoder.h"
#include "server/api/openai/render_body.h"

namespace diffserve {
namespace {

// The error for what a request to /inference/v1/generate cannot express.
Status Lost(const std::string& what, const char* param) {
  return InvalidArgument("a rendered request has only tokens and would lose " + what, param);
}

Status CheckRenders(const GenerateRequest& request) {
  if (request.max_reasoning_tokens >= 0)
    return Lost("max_reasoning_tokens", "max_reasoning_tokens");
  if (!request.grammar) return {};
  const char* const param = request.grammar->param;
  if (!request.call_marker.empty()) return Lost("the calls that may come instead", "tools");
  return StructuredOutputsText(*request.grammar).empty() ? Lost(param, param) : Status();
}

Status CheckRendered(const TokenizedRequest& rendered, const GenerateRequest& asked) {
  if (!asked.grammar || rendered.prompts.front().reasoning != ReasoningStart::kOpen) return {};
  return Lost(std::string(asked.grammar->param) + ", which begins after the reasoning",
              asked.grammar->param);
}

// One object for a conversation, a list of objects for a completion's prompts.
Result<std::string> RenderedText(const ApiContext& api, const TokenizedRequest& rendered,
                                 const GenerateRequest& asked, const std::string& id, bool chat) {
  DS_RETURN_IF_ERROR(CheckRendered(rendered, asked));
  const size_t n = rendered.continuations.size() / rendered.prompts.size();
  std::string body;
  JsonWriter json(&body);
  if (!chat) json.Begin('[');
  for (size_t i = 0; i < rendered.prompts.size(); ++i) {
    const std::vector<int32_t>& ids = rendered.prompts[i].token_ids.ids();
    Result<std::string> text = api.frontend.tokenizer().Decode(ids, /*skip_special_tokens=*/false);
    if (!text.ok()) return text.status();
    json.Json(RenderBody({chat ? id : id + "-" + std::to_string(i), api.model_name(),
                          std::move(text).value(), ids, rendered.continuations[i * n].max_tokens},
                         asked));
  }
  if (!chat) json.End(']');
  return body;
}

}  // namespace

std::string OpenAiId(const RouteCall& call, bool chat) {
  return (chat ? "chatcmpl-" : "cmpl-") + call.account.request_id;
}

HttpAnswer TokenizeText(ApiContext& api, RouteCall& call, Result<TokenizeRequest> parsed) {
  if (!parsed.ok()) return api.Error(parsed.status());
  if (const Status status = api.CheckModel(parsed->model); !status.ok()) return api.Error(status);
  auto pending = std::make_shared<PendingReply>(std::move(call.wake));
  const bool with_texts = parsed->return_token_strs;
  const int max_model_len = api.frontend.engine().options().max_model_len;
  const Status status = api.frontend.Tokenize(
      call.account.client, std::move(parsed->prompt), {parsed->add_special_tokens, {}},
      [self = api.shared_from_this(), pending, with_texts,
       max_model_len](Result<std::vector<int32_t>> ids) {
        if (!ids.ok()) return pending->Fill(ids.status());
        std::vector<std::string> texts;
        if (with_texts) {
          for (const int32_t id : *ids) texts.push_back(self->frontend.tokenizer().TokenBytes(id));
        }
        pending->Fill(JsonReply(TokenizeBody(*ids, max_model_len, with_texts ? &texts : nullptr)));
      });
  if (!status.ok()) return api.Error(status);
  return api.Pending(call, std::move(pending));
}

HttpAnswer DetokenizeIds(ApiContext& api, RouteCall& call, Result<DetokenizeRequest> parsed) {
  if (!parsed.ok()) return api.Error(parsed.status());
  if (const Status status = api.CheckModel(parsed->model); !status.ok()) return api.Error(status);
  auto pending = std::make_shared<PendingReply>(std::move(call.wake));
  const Status status = api.frontend.Detokenize(
      call.account.client, std::move(parsed->tokens), "tokens",
      [pending](Result<std::string> text) {
        pending->Fill(text.ok() ? JsonReply(JsonObjectOf("prompt", *text))
                                : Result<HttpReply>(text.status()));
      });
  if (!status.ok()) return api.Error(status);
  return api.Pending(call, std::move(pending));
}

HttpAnswer RenderRequest(ApiContext& api, RouteCall& call, Result<OpenAiRequest> parsed) {
  if (!parsed.ok()) return api.Error(parsed.status());
  if (const Status status = CheckRenders(parsed->generate); !status.ok()) return api.Error(status);
  auto pending = std::make_shared<PendingReply>(std::move(call.wake));
  GenerateRequest request = std::move(parsed->generate);
  request.client = call.account.client;
  // Rendering consumes the request; a copy without the long prompts is kept for the reply.
  std::vector<Prompt> prompts = std::exchange(request.prompts, {});
  auto asked = std::make_shared<const GenerateRequest>(request);
  request.prompts = std::move(prompts);
  auto fill = [self = api.shared_from_this(), pending, asked, chat = parsed->chat,
               id = OpenAiId(call, parsed->chat)](Result<TokenizedRequest> rendered) {
    if (!rendered.ok()) return pending->Fill(rendered.status());
    Result<std::string> body = RenderedText(*self, *rendered, *asked, id, chat);
    pending->Fill(body.ok() ? JsonReply(std::move(body).value())
                            : Result<HttpReply>(body.status()));
  };
  const Status status = api.frontend.Render(std::move(request), std::move(fill));
  if (!status.ok()) return api.Error(status);
  return api.Pending(call, std::move(pending));
}

}  // namespace diffserve
