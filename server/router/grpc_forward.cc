// SPDX-License-Identifier: Apache-2.0
#include "server/router/grpc_forward.h"

#include <grpc/grpc.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "kernels/process/log.h"
#include "server/api/grpc/server.h"
#include "server/api/head/parent_secret.h"
#include "server/serving/request/served_names.h"
#include "server/serving/status_codes.h"

namespace diffserve {
namespace {

constexpr int kRetryAfterMemory = 1;

std::string_view ViewOf(grpc::string_ref text) { return {text.data(), text.size()}; }

// Metadata of one connection, which gRPC makes itself.
bool IsOfConnection(std::string_view name) {
  return name.starts_with(':') || name.starts_with("grpc-") || name == "user-agent" ||
         name == "te" || name == "content-type" || name == "host";
}

std::shared_ptr<grpc::Channel> NewChannel(int port) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);  // the process has sent no more than it may
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // its own connection
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  return grpc::CreateCustomChannel("ipv4:127.0.0.1:" + std::to_string(port),
                                   grpc::InsecureChannelCredentials(), arguments);
}

// How gRPC's texts for a connection that breaks under a call end: "recvmsg:Broken pipe".
constexpr std::string_view kBrokenConnection[] = {"Socket closed", "Connection reset by peer",
                                                  "Broken pipe"};

// Whether the status was made on this side, because the connection failed. gRPC 1.51 describes that
// as a status of the peer once the connection has stood.
bool IsConnectionFailure(const grpc::Status& status, const grpc::ClientContext& context) {
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE) return false;
  const auto ends_with = [text = status.error_message()](std::string_view end) {
    return text.ends_with(end);
  };
  return std::ranges::any_of(kBrokenConnection, ends_with) ||
         context.debug_error_string().find("received from peer") == std::string::npos;
}

}  // namespace

GrpcForwarding::GrpcForwarding(const GrpcServerOptions& options, const RoutedModels& models_in,
                               ModelChildren& children_in, const CallWatch& watch_in)
    : models(models_in),
      children(children_in),
      watch(watch_in),
      open_calls(options.max_open_calls),
      // At its quota gRPC closes connections, also those of other clients.
      held_bytes(options.memory_quota_bytes / 4 * 3),
      channels(children.num_models(), {}, &NewChannel),
      write_starter(std::chrono::milliseconds(options.write_stall_timeout_ms)) {}

GrpcForwardCall* GrpcForwardCall::New(GrpcForwarding& forwarding, const std::string& method,
                                      const RequestModelField& field,
                                      grpc::CallbackServerContext* context) {
  const std::shared_ptr<GrpcForwardCall> call(
      new GrpcForwardCall(forwarding, method, field, context));
  call->self_ = call;
  forwarding.write_starter.Watch(call);
  call->Begin();
  return call.get();
}

void GrpcForwardCall::Begin() {
  std::lock_guard lock(mutex_);
  const auto health = GrpcHealthReply(method_, forwarding_.children.Ready().ok());
  Status status = health ? forwarding_.watch.Entry(*context_) : forwarding_.watch.Access(*context_);
  if (health && status.ok()) {  // the parent's own: no model is asked, or loaded for it
    const grpc::Slice slice(*health);
    reply_ = grpc::ByteBuffer(&slice, 1);
    ended_ = true;
    return StartWriteAndFinish(&reply_, {}, grpc::Status::OK);
  }
  if (status.ok()) {
    status = forwarding_.open_calls.Take(client_);
    is_open_ = status.ok();
  }
  status.ok() ? StartRead(&request_) : Refuse(status);
}

// REQUIRES: the lock, here and for each function below that is not a reaction.
void GrpcForwardCall::End(const grpc::Status& status) {
  ended_ = true;
  Finish(status);
}

void GrpcForwardCall::Refuse(const Status& status) {
  if (status.retry_after_s() > 0)
    context_->AddTrailingMetadata("retry-after", std::to_string(status.retry_after_s()));
  End({static_cast<grpc::StatusCode>(WireStatusOf(status.code()).grpc), status.message()});
}

std::string GrpcForwardCall::NameOfModel() {
  const auto given = context_->client_metadata().find("model");
  if (given != context_->client_metadata().end()) return std::string(ViewOf(given->second));
  return field_.Find(&request_);
}

void GrpcForwardCall::FindUse() {
  const std::string name = NameOfModel();
  const std::optional<size_t> model = forwarding_.models.Find(name);
  if (!model) return Refuse(UnknownModel(name, forwarding_.models.Names()));
  model_ = *model;
  if (auto use = forwarding_.children.TryUse(model_, client_))
    return use->ok() ? Start(**std::move(use)) : Refuse(use->status());
  wait_ = forwarding_.children.Ask(model_, client_, [weak = std::weak_ptr(self_)] {
    if (const auto call = weak.lock()) call->OnUse();
  });
}

void GrpcForwardCall::OnUse() {
  std::lock_guard lock(mutex_);
  if (ended_ || wait_ == nullptr) return;
  std::optional<Result<ChildUse>> use = wait_->Take();
  if (!use) return;
  wait_.reset();
  use->ok() ? Start(**std::move(use)) : Refuse(use->status());
}

void GrpcForwardCall::Start(ChildUse use) {
  use_ = std::move(use);
  for (const auto& [name, value] : context_->client_metadata()) {
    if (!IsOfConnection(ViewOf(name)) && name != kClientField)
      client_context_.AddMetadata(std::string(ViewOf(name)), std::string(ViewOf(value)));
  }
  client_context_.AddMetadata(kClientField, ClientFieldValue(use_->secret, client_));
  client_context_.set_deadline(context_->deadline());
  stub_ = std::make_unique<grpc::GenericStub>(forwarding_.channels.Take(model_, *use_, client_));
  stub_->PrepareBidiStreamingCall(&client_context_, method_, {}, &upstream_);
  started_ = takes_messages_ = true;
  upstream_.AddHold();  // until the last read, because operations start outside its reactions
  if (half_closed_)
    upstream_.StartWritesDone();
  else
    upstream_.StartWrite(&request_);
  upstream_.StartCall();
}

void GrpcForwardCall::OnReadDone(bool ok) {
  std::lock_guard lock(mutex_);
  if (ended_) return;
  half_closed_ = !ok;
  if (ok && !held_bytes_.Set(request_.Length())) return RefuseMessage();
  if (std::exchange(is_first_read_, false)) {
    if (!context_->IsCancelled()) FindUse();
  } else if (takes_messages_ && ok) {
    upstream_.StartWrite(&request_);
  } else if (takes_messages_) {
    upstream_.StartWritesDone();
  }
}

void GrpcForwardCall::Upstream::OnWriteDone(bool ok) {
  std::lock_guard lock(call_.mutex_);
  call_.request_.Clear();
  call_.held_bytes_.Set(0);
  if (ok && !call_.half_closed_ && !call_.ended_) call_.StartRead(&call_.request_);
}

void GrpcForwardCall::Upstream::OnReadInitialMetadataDone(bool ok) {
  std::lock_guard lock(call_.mutex_);
  if (ok) {
    for (const auto& [name, value] : call_.client_context_.GetServerInitialMetadata()) {
      if (!IsOfConnection(ViewOf(name)))
        call_.context_->AddInitialMetadata(std::string(ViewOf(name)), std::string(ViewOf(value)));
    }
    call_.StartSendInitialMetadata();
  }
  StartRead(&call_.reply_);
}

void GrpcForwardCall::Upstream::OnReadDone(bool ok) {
  std::lock_guard lock(call_.mutex_);
  if (ok) {
    call_.write_begin_ = std::chrono::steady_clock::now();
    return call_.StartWrite(&call_.reply_);
  }
  call_.takes_messages_ = false;
  RemoveHold();
}

void GrpcForwardCall::OnWriteDone(bool ok) {
  std::lock_guard lock(mutex_);
  write_begin_.reset();
  if (!ok) client_context_.TryCancel();
  upstream_.StartRead(&reply_);
}

// The model's process takes messages more slowly than its clients send them.
void GrpcForwardCall::RefuseMessage() {
  request_.Clear();
  held_bytes_.Set(0);
  const Status status = Status(StatusCode::kResourceExhausted,
                               "the messages of this client that wait take too much memory")
                            .WithRetryAfter(kRetryAfterMemory);
  if (!started_) return Refuse(status);
  refused_ = status;
  client_context_.TryCancel();
}

void GrpcForwardCall::EndIfStalled(std::chrono::steady_clock::time_point begin) {
  grpc_call* call = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (ended_ || !write_begin_ || *write_begin_ > begin) return;
    call = context_->c_call();
    grpc_call_ref(call);
  }
  Log(LogLevel::kInfo, "grpc_write_stalled", {{"model", forwarding_.children.name(model_)}});
  grpc_call_cancel_with_status(call, GRPC_STATUS_CANCELLED, "the client does not read", nullptr);
  grpc_call_unref(call);
}

void GrpcForwardCall::OnDone() {
  if (is_open_) forwarding_.open_calls.Give(client_);
  self_.reset();
}

void GrpcForwardCall::OnCancel() {
  std::lock_guard lock(mutex_);
  if (started_) return client_context_.TryCancel();
  wait_.reset();
  if (!ended_) End(grpc::Status::CANCELLED);
}

void GrpcForwardCall::OnUpstreamDone(const grpc::Status& status) {
  const std::shared_ptr<GrpcForwardCall> self = self_;  // Finish may end this call on another
                                                        // thread
  std::lock_guard lock(mutex_);
  for (const auto& [name, value] : client_context_.GetServerTrailingMetadata()) {
    if (!IsOfConnection(ViewOf(name)))
      context_->AddTrailingMetadata(std::string(ViewOf(name)), std::string(ViewOf(value)));
  }
  if (refused_) return Refuse(*refused_);
  if (!IsConnectionFailure(status, client_context_)) return End(status);
  const std::string& model = forwarding_.children.name(model_);
  Log(LogLevel::kWarning, "forward_failed", {{"model", model}, {"reason", status.error_message()}});
  End({grpc::StatusCode::UNAVAILABLE,
       "the process of model " + model + " ended before its answer did; try again"});
}

}  // namespace diffserve
