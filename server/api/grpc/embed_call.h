// SPDX-License-Identifier: Apache-2.0
// EmbedCall: one unary call that answers with vectors: its inputs are prompts of which nothing is
// generated, under the checks of /v1/embeddings. `Api` says what differs between services:
//   using Message = ...;                 // of the answer
//   static constexpr char kMethod[];     // for the log and the counters
//   static constexpr char kInput[];      // the field that the prompts come in
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
#include "server/api/grpc/stream_call.h"
#include "server/serving/request/embedding_request.h"

namespace diffserve {

using StatePools = std::vector<std::shared_ptr<HiddenStatePool>>;

template <typename Api>
class EmbedCall : public StreamCall<typename Api::Message, OneAnswer<typename Api::Message>> {
  using Message = typename Api::Message;
  using Base = StreamCall<Message, OneAnswer<Message>>;

 public:
  // `received` is the status of the message; `read()` gives its Result<EmbeddingRequest>.
  template <typename Read>
  static grpc::ServerUnaryReactor* Begin(CallContext& shared, grpc::CallbackServerContext* context,
                                         const Status& received, Message* response,
                                         const Read& read) {
    return Base::template Begin<EmbedCall>(shared, context, received, [&](EmbedCall& call) {
      call.answer_ = response;
      return OfInput(call.Start(read()), Api::kInput);
    });
  }

  EmbedCall(CallContext& shared, grpc::CallbackServerContext* context)
      : Base(Api::kMethod, shared, context) {}

 private:
  Status Start(Result<EmbeddingRequest> request) {
    if (!request.ok()) return request.status();
    Frontend& frontend = this->shared_.frontend;
    DS_RETURN_IF_ERROR(CheckPoolsStates(frontend.options()));
    DS_RETURN_IF_ERROR(AddPools(frontend.model_config().hidden_size, &*request));
    GenerateRequest& generate = request->generate;
    DS_RETURN_IF_ERROR(this->TakeRequestId(generate.request_id));
    generate.request_id = this->request_id_;
    generate.client = this->record_.client();
    generate.deadline = this->deadline();
    pools_ = generate.pools;
    stream_ = std::make_shared<ResponseStream>(
        frontend.options().max_stream_bytes, [call = this->weak_self()] { EmbedCall::Wake(call); });
    return Assign(&response_, frontend.Generate(std::move(generate), stream_));
  }

  bool TakeNext(Message* message) override {
    while (!this->done_) {
      const std::optional<ResponseEvent> event = stream_->TryPop();
      if (!event) return false;
      const auto* const done = std::get_if<ResponseDone>(&*event);
      if (done == nullptr) continue;
      this->done_ = OfInput(done->status, Api::kInput);
      if (!done->status.ok()) return false;
      Api::Fill(pools_, done->usage, *message);
      return true;
    }
    return false;
  }

  void Cancel() override {
    if (stream_ == nullptr) return;
    stream_->Close();
    this->shared_.frontend.Abandon(response_);
  }

  void Close() override {
    if (stream_ != nullptr) stream_->Close();
  }

  StatePools pools_;  // all set before any reaction can run
  std::shared_ptr<ResponseStream> stream_;
  ResponseId response_ = 0;
};

}  // namespace diffserve
