// SPDX-License-Identifier: Apache-2.0
// EmbedCall: one unary call that answers with vectors: its inputs are prompts of which nothing is
// generated, under the checks of /v1/embeddings. `Api` says what differs between services:
//   using Message = ...;                 // of the answer
//   static constexpr char kMethod[];     // for the log and the counters
//   static void Fill(const StatePools& pools, const Usage& usage, Message& out);
// Thread safety: as StreamCall.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "models/diagnostics/hidden_state_pool.h"
#include "server/api/grpc/response_call.h"
#include "server/serving/request/embedding_request.h"

namespace diffserve {

using StatePools = std::vector<std::shared_ptr<HiddenStatePool>>;

template <typename Api>
class EmbedCall : public ResponseCall<typename Api::Message, OneAnswer<typename Api::Message>> {
  using Message = typename Api::Message;
  using Base = ResponseCall<Message, OneAnswer<Message>>;

 public:
  // `received` is the status of the message; `read()` gives its Result<EmbeddingRequest>.
  template <typename Read>
  static grpc::ServerUnaryReactor* Begin(CallContext& shared, grpc::CallbackServerContext* context,
                                         const Status& received, Message* response,
                                         const Read& read) {
    return Base::template Begin<EmbedCall>(shared, context, received, [&](EmbedCall& call) {
      call.answer_ = response;
      return call.Start(read());
    });
  }

  EmbedCall(CallContext& shared, grpc::CallbackServerContext* context)
      : Base(Api::kMethod, shared, context) {}

 private:
  Status Start(Result<EmbeddingRequest> request) {
    if (!request.ok()) return request.status();
    Frontend& frontend = this->shared_.frontend;
    DS_RETURN_IF_ERROR(AddPools(frontend.model_config().hidden_size, &*request));
    GenerateRequest& generate = request->generate;
    DS_RETURN_IF_ERROR(this->Identify(&generate));
    pools_ = generate.pools;
    return this->Generate(std::move(generate));
  }

  bool TakeNext(Message* message) override {
    while (!this->done_) {
      const std::optional<ResponseEvent> event = this->NextEvent();
      if (!event) return false;
      const auto* const done = std::get_if<ResponseDone>(&*event);
      if (done == nullptr) continue;
      this->done_ = done->status;
      if (!done->status.ok()) return false;
      Api::Fill(pools_, done->usage, *message);
      return true;
    }
    return false;
  }

  StatePools pools_;  // set before any reaction can run
};

}  // namespace diffserve
