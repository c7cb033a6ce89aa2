// SPDX-License-Identifier: Apache-2.0
// ResponseCall: a StreamCall whose messages come from one response of the Frontend.
// Thread safety: as StreamCall.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "server/api/grpc/stream_call.h"

namespace diffserve {

template <typename Message, typename Reactor = grpc::ServerWriteReactor<Message>>
class ResponseCall : public StreamCall<Message, Reactor> {
 protected:
  using StreamCall<Message, Reactor>::StreamCall;

  // Sets what a request takes from its call. Error: its id is too long.
  Status Identify(GenerateRequest* generate) {
    DS_RETURN_IF_ERROR(this->TakeRequestId(generate->request_id));
    generate->request_id = this->request_id_;
    generate->client = this->record_.client();
    generate->deadline = this->deadline();
    return {};
  }

  Status Generate(GenerateRequest generate) {
    Frontend& frontend = this->shared_.frontend;
    stream_ = std::make_shared<ResponseStream>(
        frontend.options().max_stream_bytes,
        [call = this->weak_self()] { ResponseCall::Wake(call); });
    return Assign(&response_, frontend.Generate(std::move(generate), stream_));
  }

  // REQUIRES: Generate has been called.
  std::optional<ResponseEvent> NextEvent() { return stream_->TryPop(); }

 private:
  void Cancel() override {
    if (stream_ == nullptr) return;
    stream_->Close();
    this->shared_.frontend.Abandon(response_);
  }
  void Close() override {
    if (stream_ != nullptr) stream_->Close();
  }

  std::shared_ptr<ResponseStream> stream_;  // set before any reaction can run
  ResponseId response_ = 0;
};

}  // namespace diffserve
