// SPDX-License-Identifier: Apache-2.0
// Routes for clients that do part of the work themselves: token ids in and out, prompts rendered
// without a run, and the tokenizer's settings. Also refusals of the routes that need another kind
// of model.
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/api/fields/structured_fields.h"
#include "server/api/routes_impl.h"
#include "server/api/vllm/encoder.h"

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
  if (!request.call_marker.empty()) return Lost("the calls that are allowed instead", "tools");
  return StructuredOutputsText(*request.grammar).empty() ? Lost(param, param) : Status();
}

Status CheckRendered(const TokenizedRequest& rendered, const GenerateRequest& asked) {
  if (!asked.grammar || !rendered.prompts.front().opens_reasoning) return {};
  return Lost(std::string(asked.grammar->param) + ", which begins after the reasoning",
              asked.grammar->param);
}

}  // namespace

HttpAnswer OpenAiRoutes::Impl::TokensParsed(RouteCall& call, Result<TokenRequest> parsed) {
  const ErrorReply errors = [self = shared_from_this()](const Status& error) {
    return self->Error(TokenPromptError(error));
  };
  if (!parsed.ok()) return Refused(parsed.status(), errors);
  AnswerRequest& request = parsed->request;
  const std::string& id = parsed->request_id.empty() ? call.account.request_id : parsed->request_id;
  auto response = std::make_unique<TokenResponse>(
      request,
      TokenResponse::Identity{id, frontend.options().served_model_name, std::time(nullptr)},
      TokenTextsOf());
  return StartResponse(call, std::move(request.generate),
                       {std::move(response), request.stream, errors});
}

HttpAnswer OpenAiRoutes::Impl::RenderParsed(RouteCall& call, Result<OpenAiRequest> parsed) {
  if (!parsed.ok()) return Error(parsed.status());
  if (const Status status = CheckRenders(parsed->generate); !status.ok()) return Error(status);
  auto pending = std::make_shared<PendingReply>(std::move(call.wake));
  GenerateRequest request = std::move(parsed->generate);
  request.client = call.account.client;
  // Rendering consumes the request; a copy without the long prompts is kept for the reply.
  std::vector<Prompt> prompts = std::exchange(request.prompts, {});
  auto asked = std::make_shared<const GenerateRequest>(request);
  request.prompts = std::move(prompts);
  auto fill = [self = shared_from_this(), pending, asked, chat = parsed->chat,
               id = Identity(call, parsed->chat).id](Result<TokenizedRequest> rendered) {
    if (!rendered.ok()) return pending->Fill(rendered.status());
    Result<std::string> body = self->RenderedText(*rendered, *asked, id, chat);
    pending->Fill(body.ok() ? Json(std::move(body).value()) : Result<HttpReply>(body.status()));
  };
  const Status status = frontend.Render(std::move(request), std::move(fill));
  if (!status.ok()) return Error(status);
  return Pending(std::move(pending));
}

// One object for a conversation, a list of objects for a completion's prompts.
Result<std::string> OpenAiRoutes::Impl::RenderedText(const TokenizedRequest& rendered,
                                                     const GenerateRequest& asked,
                                                     const std::string& id, bool chat) const {
  DS_RETURN_IF_ERROR(CheckRendered(rendered, asked));
  const size_t n = rendered.continuations.size() / rendered.prompts.size();
  std::string body;
  JsonWriter json(&body);
  if (!chat) json.Begin('[');
  for (size_t i = 0; i < rendered.prompts.size(); ++i) {
    const std::vector<int32_t>& ids = rendered.prompts[i].token_ids.ids();
    Result<std::string> text = frontend.tokenizer().Decode(ids, /*skip_special_tokens=*/false);
    if (!text.ok()) return text.status();
    json.Json(
        RenderBody({chat ? id : id + "-" + std::to_string(i), frontend.options().served_model_name,
                    std::move(text).value(), ids, rendered.continuations[i * n].max_tokens},
                   asked));
  }
  if (!chat) json.End(']');
  return body;
}

}  // namespace diffserve
