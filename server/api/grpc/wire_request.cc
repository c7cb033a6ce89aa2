// SPDX-License-Identifier: Apache-2.0
#include "server/api/grpc/wire_request.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <limits>
#include <map>
#include <string>

#include "kernels/base/refusal.h"
#include "server/serving/request/request_checks.h"
#include "server/serving/request/sampling_numbers.h"

namespace diffserve {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr int kMaxUnknownFields = 64;

// Scans a message by its descriptor without storing anything.
class Scanner {
 public:
  explicit Scanner(CodedInputStream& in) : in_(in) {}

  Status Scan(const Descriptor& type) {
    while (const uint32_t tag = in_.ReadTag()) {
      const FieldDescriptor* const field = type.FindFieldByNumber(
          WireFormatLite::GetTagFieldNumber(tag));
      DS_RETURN_IF_ERROR(Count(field));
      DS_RETURN_IF_ERROR(Skip(WireFormatLite::GetTagWireType(tag), field));
    }
    return in_.ConsumedEntireMessage() ? Status() : Malformed();
  }

 private:
  static Status Malformed() { return InvalidArgument("the message is not well-formed protobuf"); }

  Status Count(const FieldDescriptor* field) {
    if (field == nullptr) {
      if (++unknown_ <= kMaxUnknownFields) return {};
      return NotAllowed("the message has too many unknown fields",
                        "at most " + std::to_string(kMaxUnknownFields));
    }
    const bool allocates = field->is_repeated() &&
                           (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE ||
                            field->cpp_type() == FieldDescriptor::CPPTYPE_STRING);
    if (!allocates || ++counts_[field] <= kMaxMessages) return {};
    return NotAllowed(field->name() + " has too many entries",
                      "at most " + std::to_string(kMaxMessages), field->name());
  }

  Status Skip(WireFormatLite::WireType wire, const FieldDescriptor* field) {
    uint64_t value = 0;
    uint32_t size = 0;
    bool read = false;
    switch (wire) {
      case WireFormatLite::WIRETYPE_VARINT:
        read = in_.ReadVarint64(&value);
        break;
      case WireFormatLite::WIRETYPE_FIXED64:
        read = in_.Skip(8);
        break;
      case WireFormatLite::WIRETYPE_FIXED32:
        read = in_.Skip(4);
        break;
      case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
        read = in_.ReadVarint32(&size) && size <= std::numeric_limits<int>::max();
        if (read && field != nullptr && field->message_type() != nullptr)
          return ScanPart(*field->message_type(), static_cast<int>(size));
        read = read && in_.Skip(static_cast<int>(size));
        break;
      case WireFormatLite::WIRETYPE_START_GROUP:
      case WireFormatLite::WIRETYPE_END_GROUP:
        break;  // no message here has groups, and unknown ones would be kept
    }
    return read ? Status() : Malformed();
  }

  Status ScanPart(const Descriptor& type, int size) {
    if (size > in_.BytesUntilLimit()) return Malformed();
    const CodedInputStream::Limit limit = in_.PushLimit(size);
    DS_RETURN_IF_ERROR(Scan(type));
    in_.PopLimit(limit);
    return {};
  }

  CodedInputStream& in_;
  std::map<const FieldDescriptor*, size_t> counts_;
  int unknown_ = 0;
};

Status ScanWire(grpc::ByteBuffer& bytes, const Descriptor& type) {
  grpc::ProtoBufferReader reader(&bytes);
  if (!reader.status().ok()) return InvalidArgument(reader.status().error_message());
  CodedInputStream in(&reader);
  in.PushLimit(static_cast<int>(bytes.Length()));  // far below 2 GiB by gRPC's own limit
  return Scanner(in).Scan(type);
}

}  // namespace

Status ParseWire(grpc::ByteBuffer& bytes, google::protobuf::Message& out) {
  if (!bytes.Valid()) return Status(StatusCode::kCancelled, "the call ended before its message");
  DS_RETURN_IF_ERROR(ScanWire(bytes, *out.GetDescriptor()));
  grpc::ProtoBufferReader reader(&bytes);
  if (reader.status().ok() && out.ParseFromZeroCopyStream(&reader)) return {};
  return InvalidArgument("the message is not a " + out.GetDescriptor()->full_name());
}

void ReadSamplingNumbers(const google::protobuf::Message& message, SamplingParams* out) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  for (const SamplingNumber& number : kSamplingNumbers) {
    const FieldDescriptor* const field = message.GetDescriptor()->FindFieldByName(number.name);
    if (field != nullptr && reflection.HasField(message, field))
      out->*number.member = reflection.GetFloat(message, field);
  }
}

}  // namespace diffserve
