// SPDX-License-Identifier: Apache-2.0
#include "server/api/grpc/diffserve/generate_call.h"

#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "server/api/grpc/diffserve/answer_messages.h"
#include "server/api/grpc/diffserve/messages.h"
#include "server/api/grpc/stream_call.h"

namespace diffserve {
namespace {

class GenerateCall : public StreamCall<v1::GenerateResponse> {
 public:
  static auto* Begin(CallContext& shared, grpc::CallbackServerContext* context,
                     const WireRequest<v1::GenerateRequest>& request) {
    return StreamCall::Begin<GenerateCall>(
        shared, context, request.status,
        [&](GenerateCall& call) { return call.Start(request.message); });
  }

  GenerateCall(CallContext& shared, grpc::CallbackServerContext* context)
      : StreamCall("Generate", shared, context) {}

 private:
  Status Start(const v1::GenerateRequest& message) {
    Result<OpenAiRequest> request = FromProto(message, shared_.frontend.options(),
                                              shared_.frontend.DefaultSampling());
    if (!request.ok()) return request.status();
    GenerateRequest& generate = request->generate;
    DS_RETURN_IF_ERROR(TakeRequestId(generate.request_id));
    generate.request_id = request_id_;
    generate.client = record_.client();
    generate.deadline = deadline();
    messages_.emplace(*request, request_id_, shared_.frontend.tokenizer());
    stream_ = std::make_shared<ResponseStream>(shared_.frontend.options().max_stream_bytes,
                                               [call = weak_self()] { Wake(call); });
    return Assign(&response_, shared_.frontend.Generate(std::move(generate), stream_));
  }

  // The start message waits for the next event, which may be a refusal by the engine: client
  // libraries retry only calls that got no message.
  bool TakeNext(v1::GenerateResponse* message) override {
    while (!done_ && (pending_.empty() || holds_start_)) {
      const std::optional<ResponseEvent> event = stream_->TryPop();
      if (!event) break;
      const auto* done = std::get_if<ResponseDone>(&*event);
      if (done != nullptr) done_ = done->status;
      if (done != nullptr && !done->status.ok() && holds_start_) pending_.clear();
      messages_->Append(*event, &pending_);
      holds_start_ = std::holds_alternative<ResponseStarted>(*event);
    }
    if (pending_.empty() || holds_start_) return false;
    *message = std::move(pending_.front());
    pending_.pop_front();
    return true;
  }

  void Cancel() override {
    if (stream_ == nullptr) return;
    stream_->Close();
    shared_.frontend.Abandon(response_);
  }

  void Close() override {
    if (stream_ != nullptr) stream_->Close();
  }

  std::optional<AnswerMessages> messages_;  // set before any reaction can run, as are the next two
  std::shared_ptr<ResponseStream> stream_;
  ResponseId response_ = 0;
  std::deque<v1::GenerateResponse> pending_;
  bool holds_start_ = false;  // pending_ is only the start
};

}  // namespace

grpc::ServerWriteReactor<v1::GenerateResponse>* BeginGenerate(
    CallContext& shared, grpc::CallbackServerContext* context,
    const WireRequest<v1::GenerateRequest>& request) {
  return GenerateCall::Begin(shared, context, request);
}

}  // namespace diffserve
