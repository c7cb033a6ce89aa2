// SPDX-License-Identifier: Apache-2.0
// RequestModelField: where the requests of a gRPC method name their model. It is found in the
// method's description, so no service is known here. Thread safety: immutable.
#pragma once

#include <google/protobuf/descriptor.h>
#include <grpcpp/support/byte_buffer.h>

#include <string>

namespace diffserve {

class RequestModelField {
 public:
  // The first of `model`, `model_name` and `name` that is a string of the message itself.
  explicit RequestModelField(const google::protobuf::Descriptor& request);

  // The name in a message; empty: it names none.
  std::string Find(grpc::ByteBuffer* message) const;

 private:
  int number_ = 0;  // 0: there is no such field
};

}  // namespace diffserve
