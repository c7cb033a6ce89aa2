#include <memory>
#include <string>
#include <utility>

#include "server/openai/embedding_reply.h"
#include "server/openai/embedding_request.h"
#include "server/openai/routes_impl.h"

namespace diffserve {
namespace {

// What the Frontend says of prompts, of the member that they came in.
Status OfInput(const Status& status) {
  if (status.param() != "prompt" && status.param() != "n") return status;
  return Status(status.code(), status.message(), "input").WithRetryAfter(status.retry_after_s());
}

}  // namespace

HttpAnswer OpenAiRoutes::Impl::Embeddings(Call& call) {
  return ParseThen(call, ParseEmbeddingRequest, &Impl::EmbeddingsParsed);
}

HttpAnswer OpenAiRoutes::Impl::EmbeddingsParsed(RouteCall& call, Result<EmbeddingRequest> parsed) {
  const ErrorReply errors = [self = shared_from_this()](const Status& error) {
    return self->Error(OfInput(error));
  };
  if (!parsed.ok()) return Refused(parsed.status(), errors);
  if (!frontend.options().pools_states) {
    return Refused(InvalidArgument("embeddings are made with --device cpu alone; this server runs "
                                   "with --device cuda"),
                   errors);
  }
  if (const Status status = AddPools(frontend.model_config().hidden_size, &*parsed); !status.ok())
    return Refused(status, errors);
  auto reply = std::make_unique<EmbeddingReply>(parsed->generate.pools, parsed->base64,
                                                frontend.options().served_model_name);
  return StartResponse(call, std::move(parsed->generate),
                       {std::move(reply), /*streams=*/false, errors});
}

}  // namespace diffserve
