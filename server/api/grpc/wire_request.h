// SPDX-License-Identifier: Apache-2.0
// WireRequest: a request message that is scanned before protobuf parses it. Each entry of a
// repeated message or string is a separate allocation; an empty one takes twenty times its bytes on
// the wire. So the number of entries is limited before any is allocated.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include "engine/contract/sampling_spec.h"
#include "kernels/base/status.h"

namespace diffserve {

// Error: kInvalidArgument with the field, what was found and what is allowed; kCancelled if the
// call ended before its message came.
Status ParseWire(grpc::ByteBuffer& bytes, google::protobuf::Message& out);

// Sets the sampling numbers whose fields the message has: those with a value, where a field has
// presence, and those that are not 0 elsewhere.
void ReadSamplingNumbers(const google::protobuf::Message& message, SamplingParams* out);

template <typename Message>
struct WireRequest {
  Message message;
  Status status;  // of ParseWire; `message` is meaningless unless it is ok
};

}  // namespace diffserve

// gRPC sends no answer to a message that it cannot read, so a refusal is passed on as part of the
// request.
template <typename Message>
class grpc::SerializationTraits<diffserve::WireRequest<Message>> {
 public:
  static grpc::Status Deserialize(grpc::ByteBuffer* bytes,
                                  diffserve::WireRequest<Message>* request) {
    request->status = diffserve::ParseWire(*bytes, request->message);
    bytes->Clear();
    return grpc::Status::OK;
  }
};
