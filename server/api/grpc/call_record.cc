// SPDX-License-Identifier: Apache-2.0
#include "server/api/grpc/call_record.h"

#include <charconv>
#include <string>

#include "kernels/process/log.h"
#include "server/api/grpc/call_watch.h"
#include "server/api/head/client_identity.h"
#include "server/http/peer_address.h"
#include "server/serving/status_codes.h"

namespace diffserve {
namespace {

constexpr size_t kMaxMessageBytes = 2048;  // of an error, so that trailers stay far below what
                                           // peers accept

std::string_view View(grpc::string_ref text) { return {text.data(), text.size()}; }

// A header value may have only printable ASCII.
bool IsPrintable(std::string_view text) {
  for (const char c : text) {
    if (c < 0x20 || c > 0x7e) return false;
  }
  return !text.empty();
}

// The first valid key that the metadata holds.
std::string_view KeyOf(const ApiKeys& keys, const GrpcMetadata& metadata) {
  std::string_view key;
  for (const auto& [name, value] : metadata) {
    std::string_view presented;
    if (name == "authorization") presented = ApiKeys::BearerToken(View(value));
    if (name == "x-api-key") presented = View(value);
    if (key.empty() && !presented.empty() && keys.Find(presented)) key = presented;
  }
  return key;
}

}  // namespace

Status CheckKey(const ApiKeys& keys, const GrpcMetadata& metadata) {
  if (!keys.required() || !KeyOf(keys, metadata).empty()) return {};
  return Status(
      StatusCode::kUnauthenticated,
      "no valid API key: send metadata \"authorization: Bearer KEY\" or \"x-api-key: KEY\"");
}

int DescriptorOf(std::string_view peer) {
  constexpr std::string_view kDescriptor = "fd:";
  int fd = -1;
  if (peer.starts_with(kDescriptor))
    std::from_chars(peer.data() + kDescriptor.size(), peer.data() + peer.size(), fd);
  return fd;
}

std::string ClientOf(const ApiKeys& keys, const GrpcMetadata& metadata, std::string_view peer) {
  return ClientName(keys, KeyOf(keys, metadata), PeerAddress(DescriptorOf(peer)));
}

CallRecord::CallRecord(const char* method, const CallWatch& watch,
                       grpc::CallbackServerContext* context)
    : method_(method),
      context_(context),
      entry_(watch.Entry(*context)),
      access_(watch.Access(*context)),
      client_(watch.ClientOf(*context)),
      trace_(TraceOf(context->client_metadata())) {
  if (trace_) {
    for (const auto& [name, value] : TraceFields(*trace_))
      context_->AddInitialMetadata(name, value);
  }
  const auto format = context_->client_metadata().find(kLoadFormatField);
  if (access_.ok() && format != context_->client_metadata().end())
    load_format_ = LoadFormatOf(View(format->second));
}

grpc::Status CallRecord::ToGrpc(const Status& status) const {
  if (status.ok()) return grpc::Status::OK;
  if (IsPrintable(status.param()))
    context_->AddTrailingMetadata("param", status.param().substr(0, 128));
  if (status.retry_after_s() > 0)
    context_->AddTrailingMetadata("retry-after", std::to_string(status.retry_after_s()));
  return grpc::Status(static_cast<grpc::StatusCode>(WireStatusOf(status.code()).grpc),
                      status.message().substr(0, kMaxMessageBytes));
}

void CallRecord::End(const Engine& engine, const grpc::Status& status,
                     std::string_view request_id) const {
  if (load_format_ != LoadFormat::kNone) {
    context_->AddTrailingMetadata(
        load_format_ == LoadFormat::kBinary ? kLoadFieldBinary : kLoadField,
        LoadReport(engine.Snapshot(), load_format_));
  }
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - begin_);
  Log(status.ok() ? LogLevel::kDebug : LogLevel::kInfo, "grpc_request",
      {{"method", method_},
       {"code", std::to_string(status.error_code())},
       {"ms", std::to_string(ms.count())},
       {"request_id", std::string(request_id)}});
  if (trace_) LogTraced(*trace_, method_, status.error_code(), request_id, begin_);
}

}  // namespace diffserve
