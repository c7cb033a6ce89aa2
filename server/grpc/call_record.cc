#include "server/grpc/call_record.h"

#include <string>

#include "server/status_codes.h"

namespace diffserve {
namespace {

constexpr size_t kMaxMessageBytes = 2048;  // of an error, so that trailers stay far below what
                                           // peers accept

std::string_view View(grpc::string_ref text) { return {text.data(), text.size()}; }

// A header value may hold printable ASCII alone.
bool IsPrintable(std::string_view text) {
  for (const char c : text) {
    if (c < 0x20 || c > 0x7e) return false;
  }
  return !text.empty();
}

}  // namespace

Status CheckKey(const ApiKeys& keys, const GrpcMetadata& metadata) {
  bool allowed = !keys.required();
  if (!allowed) {
    for (const auto& [name, value] : metadata) {
      if (name == "authorization") {
        const std::string_view token = ApiKeys::BearerToken(View(value));
        allowed |= !token.empty() && keys.Accepts(token);
      } else if (name == "x-api-key") {
        allowed |= keys.Accepts(View(value));
      }
    }
  }
  if (allowed) return {};
  return Status(
      StatusCode::kUnauthenticated,
      "no valid API key: send metadata \"authorization: Bearer KEY\" or \"x-api-key: KEY\"");
}

CallRecord::CallRecord(const char* method, const ApiKeys& keys,
                       grpc::CallbackServerContext* context)
    : method_(method),
      context_(context),
      access_(CheckKey(keys, context->client_metadata())),
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
  if (trace_) LogTraced(*trace_, method_, status.error_code(), request_id, begin_);
}

}  // namespace diffserve
