// SPDX-License-Identifier: Apache-2.0
// The bytes of a gRPC message. The first byte chooses the method, the second how the bytes are cut
// into slices. They are refused, or become a message in little memory, which becomes a request that
// is refused, or passes the checks and keeps the promises that the engine relies on.
#include <google/protobuf/message.h>
#include <google/protobuf/stubs/logging.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "diffserve/v1/inference.pb.h"
#include "inference/grpc_service.pb.h"
#include "server/api/grpc/diffserve/messages.h"
#include "server/api/grpc/kserve/messages.h"
#include "server/api/grpc/vllm_native/messages.h"
#include "server/api/grpc/wire_request.h"
#include "tests/fuzz/checked_request.h"

namespace diffserve {
namespace {

// A byte on the wire is an id of four bytes in a list that grows by doubling, or a part of a
// string; kMaxMessages entries of a list take a string or a message each.
constexpr size_t kMaxPerByte = 16, kMaxForLists = size_t{4} << 20;

Status Parse(std::string_view bytes, uint32_t cuts, google::protobuf::Message& out) {
  std::vector<grpc::Slice> slices;
  while (!bytes.empty()) {
    cuts = cuts * 1664525 + 1013904223 * (cuts != 0);
    const size_t piece = cuts == 0 ? bytes.size()
                                   : std::min<size_t>(bytes.size(), 1 + (cuts >> 16) % 64);
    slices.emplace_back(bytes.data(), piece);
    bytes.remove_prefix(piece);
  }
  grpc::ByteBuffer buffer(slices.data(), slices.size());
  return ParseWire(buffer, out);
}

void CheckRefusal(const Status& status) {
  DS_CHECK(!status.message().empty() && status.message().size() < 1000, "a refusal is a line");
}

template <typename Message>
bool Take(std::string_view bytes, uint32_t cuts, Message& message) {
  const Status status = Parse(bytes, 0, message);
  DS_CHECK(message.SpaceUsedLong() <= kMaxForLists + kMaxPerByte * bytes.size(),
           "a message takes little memory");
  Message cut;
  DS_CHECK(Parse(bytes, cuts, cut).message() == status.message(), "slices make no difference");
  if (!status.ok()) {
    CheckRefusal(status);
    return false;
  }
  DS_CHECK(Message().ParseFromArray(bytes.data(), static_cast<int>(bytes.size())),
           "what is taken is a message to protobuf too");
  Message again;
  DS_CHECK(Parse(message.SerializeAsString(), 0, again).ok(), "what is taken can be sent on");
  return true;
}

void CheckGenerate(const v1::GenerateRequest& message) {
  const FrontendOptions limits;
  const Result<AnswerRequest> request = FromProto(message, limits, SamplingSpec());
  const Status status = request.ok()
                            ? CheckRequest(request->generate, testing::FuzzedLimits(limits.names))
                            : request.status();
  if (status.ok()) return testing::CheckPromises(request->generate);
  CheckRefusal(status);
}

void CheckEmbed(const v1::EmbedRequest& message) {
  constexpr int kHiddenSize = 8;
  const FrontendOptions limits;
  Result<EmbeddingRequest> request = FromProto(message, SamplingSpec());
  Status status = request.ok() ? AddPools(kHiddenSize, &*request) : request.status();
  if (status.ok()) status = CheckRequest(request->generate, testing::FuzzedLimits(limits.names));
  if (status.ok()) return testing::CheckPromises(request->generate);
  CheckRefusal(status);
}

void CheckInfer(const inference::ModelInferRequest& message) {
  FrontendOptions limits;
  limits.names.name = message.model_name();
  for (const bool streams : {false, true}) {
    const Result<InferRequest> request = FromProto(message, limits, SamplingSpec(), streams);
    const Status status = request.ok()
                              ? CheckRequest(request->generate, testing::FuzzedLimits(limits.names))
                              : request.status();
    if (status.ok())
      testing::CheckPromises(request->generate);
    else
      CheckRefusal(status);
  }
}

void CheckNative(const native_v1::GenerateRequest& message) {
  const FrontendOptions limits;
  for (const bool whole : {false, true}) {
    const Result<NativeRequest> request = FromProto(message, SamplingSpec(), whole);
    const Status status = request.ok()
                              ? CheckRequest(request->generate, testing::FuzzedLimits(limits.names))
                              : request.status();
    if (status.ok())
      testing::CheckPromises(request->generate);
    else
      CheckRefusal(status);
  }
}

void CheckTokenize(const v1::TokenizeRequest& message) {
  const Result<Prompt> prompt = FromProto(message);
  if (!prompt.ok()) CheckRefusal(prompt.status());
}

}  // namespace
}  // namespace diffserve

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  google::protobuf::SetLogHandler(nullptr);  // the server has one of its own
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  const uint32_t cuts = data[1] + 1u;
  if (data[0] == 5) {
    diffserve::native_v1::GenerateRequest message;
    if (diffserve::Take(bytes, cuts, message)) diffserve::CheckNative(message);
  } else if (data[0] == 4) {
    diffserve::v1::EmbedRequest message;
    if (diffserve::Take(bytes, cuts, message)) diffserve::CheckEmbed(message);
  } else if (data[0] == 3) {
    inference::ModelInferRequest message;
    if (diffserve::Take(bytes, cuts, message)) diffserve::CheckInfer(message);
  } else if (data[0] % 3 == 0) {
    diffserve::v1::GenerateRequest message;
    if (diffserve::Take(bytes, cuts, message)) diffserve::CheckGenerate(message);
  } else if (data[0] % 3 == 1) {
    diffserve::v1::TokenizeRequest message;
    if (diffserve::Take(bytes, cuts, message)) diffserve::CheckTokenize(message);
  } else {
    diffserve::v1::DetokenizeRequest message;
    diffserve::Take(bytes, cuts, message);
  }
  return 0;
}
