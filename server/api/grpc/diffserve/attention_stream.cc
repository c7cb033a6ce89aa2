// SPDX-License-Identifier: Apache-2.0
#include "server/api/grpc/diffserve/attention_stream.h"

#include <memory>
#include <utility>

#include "server/api/grpc/diffserve/messages.h"
#include "server/api/grpc/stream_call.h"
#include "server/serving/attention_call.h"

namespace diffserve {
namespace {

class AttentionStream : public StreamCall<v1::AttentionResponse> {
 public:
  static auto* Begin(CallContext& shared, grpc::CallbackServerContext* context,
                     const WireRequest<v1::AttentionRequest>& request) {
    return StreamCall::Begin<AttentionStream>(
        shared, context, request.status,
        [&](AttentionStream& call) { return call.Start(request.message); });
  }

  AttentionStream(CallContext& shared, grpc::CallbackServerContext* context)
      : StreamCall("Attention", shared, context) {}

 private:
  Status Start(const v1::AttentionRequest& message) {
    Result<AttentionRequest> request = diffserve::FromProto(message);
    if (!request.ok()) return request.status();
    DS_RETURN_IF_ERROR(TakeRequestId(request->request_id));
    request->request_id = request_id_;
    request->client = record_.client();
    request->deadline = deadline();
    return Assign(&maps_, AttentionMapsCall::Start(
                              shared_.frontend, std::move(request).value(),
                              [weak = weak_self()](Result<SharedAttentionAnswer> answer) {
                                Take(weak, std::move(answer));
                              }));
  }

  static void Take(const std::weak_ptr<StreamCall>& weak, Result<SharedAttentionAnswer> answer) {
    const std::shared_ptr<StreamCall> call = weak.lock();
    if (call == nullptr) return;
    {
      auto& stream = static_cast<AttentionStream&>(*call);
      std::lock_guard lock(stream.mutex_);
      if (answer.ok()) stream.answer_ = std::move(answer).value();
      if (stream.answer_ == nullptr) stream.done_ = answer.status();
    }
    Wake(weak);
  }

  bool TakeNext(v1::AttentionResponse* message) override {
    if (answer_ == nullptr || done_) return false;
    if (next_ > answer_->items.size()) {
      done_ = Status();
      return false;
    }
    Fill(*answer_, next_, *message);
    if (next_ == 0) message->mutable_start()->set_request_id(request_id_);
    ++next_;
    return true;
  }

  void Cancel() override {
    if (maps_ != nullptr) maps_->Abandon();
  }
  void Close() override { Cancel(); }

  std::shared_ptr<AttentionMapsCall> maps_;  // set before any reaction can run
  SharedAttentionAnswer answer_;
  size_t next_ = 0;  // message
};

}  // namespace

grpc::ServerWriteReactor<v1::AttentionResponse>* BeginAttention(
    CallContext& shared, grpc::CallbackServerContext* context,
    const WireRequest<v1::AttentionRequest>& request) {
  return AttentionStream::Begin(shared, context, request);
}

}  // namespace diffserve
