// SPDX-License-Identifier: Apache-2.0
#include "server/router/grpc_model_field.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

namespace diffserve {
namespace {

using google::protobuf::FieldDescriptor;
using WireFormat = google::protobuf::internal::WireFormatLite;

constexpr const char* kModelFields[] = {"model", "model_name", "name"};

}  // namespace

RequestModelField::RequestModelField(const google::protobuf::Descriptor& request) {
  for (const char* name : kModelFields) {
    const FieldDescriptor* const field = request.FindFieldByName(name);
    if (field == nullptr || field->type() != FieldDescriptor::TYPE_STRING || field->is_repeated())
      continue;
    number_ = field->number();
    return;
  }
}

// If a message has the field several times, the last one counts, as everywhere in protobuf.
std::string RequestModelField::Find(grpc::ByteBuffer* message) const {
  std::string name;
  if (number_ == 0) return name;
  const uint32_t wanted = WireFormat::MakeTag(number_, WireFormat::WIRETYPE_LENGTH_DELIMITED);
  grpc::ProtoBufferReader reader(message);
  google::protobuf::io::CodedInputStream stream(&reader);
  while (const uint32_t tag = stream.ReadTag()) {
    const bool is_read = tag == wanted ? WireFormat::ReadBytes(&stream, &name)
                                       : WireFormat::SkipField(&stream, tag);
    if (!is_read) break;
  }
  return name;
}

}  // namespace diffserve
