// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <utility>

#include "server/api/openai/embedding_reply.h"
#include "server/api/openai/embedding_request.h"
#include "server/api/routes_impl.h"

namespace diffserve {

HttpAnswer OpenAiRoutes::Impl::Embeddings(Call& call) {
  return ParseThen(call, ParseEmbeddingRequest, &Impl::EmbeddingsParsed);
}

HttpAnswer OpenAiRoutes::Impl::EmbeddingsParsed(RouteCall& call, Result<EmbeddingRequest> parsed) {
  const ErrorReply errors = [self = shared_from_this()](const Status& error) {
    return self->Error(OfInput(error, "input"));
  };
  if (!parsed.ok()) return Refused(parsed.status(), errors);
  if (const Status status = CheckPoolsStates(frontend.options()); !status.ok())
    return Refused(status, errors);
  if (const Status status = AddPools(frontend.model_config().hidden_size, &*parsed); !status.ok())
    return Refused(status, errors);
  auto reply = std::make_unique<EmbeddingReply>(parsed->generate.pools, parsed->base64,
                                                frontend.options().served_model_name);
  return StartResponse(call, std::move(parsed->generate),
                       {std::move(reply), /*streams=*/false, errors});
}

}  // namespace diffserve
