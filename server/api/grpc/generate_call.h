// SPDX-License-Identifier: Apache-2.0
// GenerateCall: one call that generates: from its request to the last message of its answer. `Api`
// says what differs between services:
//   using Message = ...;               // of the answer
//   using Answer = ...;                // Append(event, &messages) makes messages of an event
//   static constexpr char kMethod[];   // for the log and the counters
//   static Result<Request> Read(message, frontend);  // a Request has a GenerateRequest `generate`
//   static std::unique_ptr<Answer> NewAnswer(request, id, tokenizer);
// With the Reactor OneAnswer the call is unary, and the Answer gives one message at the end.
// Thread safety: as StreamCall.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "server/api/grpc/response_call.h"
#include "server/api/grpc/wire_request.h"

namespace diffserve {

template <typename Api, typename Reactor = grpc::ServerWriteReactor<typename Api::Message>>
class GenerateCall : public ResponseCall<typename Api::Message, Reactor> {
  using Message = typename Api::Message;
  using Base = ResponseCall<Message, Reactor>;

 public:
  template <typename Request>
  static grpc::ServerWriteReactor<Message>* Begin(CallContext& shared,
                                                  grpc::CallbackServerContext* context,
                                                  const WireRequest<Request>& request) {
    return Base::template Begin<GenerateCall>(
        shared, context, request.status,
        [&](GenerateCall& call) { return call.Start(request.message); });
  }
  template <typename Request>
  static grpc::ServerUnaryReactor* BeginUnary(CallContext& shared,
                                              grpc::CallbackServerContext* context,
                                              const WireRequest<Request>& request,
                                              Message* answer) {
    return Base::template Begin<GenerateCall>(shared, context, request.status,
                                              [&](GenerateCall& call) {
                                                call.answer_ = answer;
                                                return call.Start(request.message);
                                              });
  }

  GenerateCall(CallContext& shared, grpc::CallbackServerContext* context)
      : Base(Api::kMethod, shared, context) {}

 private:
  template <typename Request>
  Status Start(const Request& message) {
    Frontend& frontend = this->shared_.frontend;
    auto request = Api::Read(message, frontend);
    if (!request.ok()) return request.status();
    GenerateRequest& generate = request->generate;
    DS_RETURN_IF_ERROR(this->Identify(&generate));
    messages_ = Api::NewAnswer(*request, this->request_id_, frontend.tokenizer());
    return this->Generate(std::move(generate));
  }

  // The start's messages wait for the next event, which may be a refusal by the engine: client
  // libraries retry only calls that got no message.
  bool TakeNext(Message* message) override {
    while (!this->done_ && (pending_.empty() || holds_start_)) {
      const std::optional<ResponseEvent> event = this->NextEvent();
      if (!event) break;
      const auto* done = std::get_if<ResponseDone>(&*event);
      if (done != nullptr) this->done_ = done->status;
      if (done != nullptr && !done->status.ok() && holds_start_) pending_.clear();
      messages_->Append(*event, &pending_);
      holds_start_ = std::holds_alternative<ResponseStarted>(*event);
    }
    if (pending_.empty() || holds_start_) return false;
    *message = std::move(pending_.front());
    pending_.pop_front();
    return true;
  }

  std::unique_ptr<typename Api::Answer> messages_;  // set before any reaction can run
  std::deque<Message> pending_;
  bool holds_start_ = false;  // pending_ is only the start's
};

}  // namespace diffserve
