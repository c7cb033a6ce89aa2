// SPDX-License-Identifier: Apache-2.0
#include "server/router/forward_exchange.h"

#include <utility>

#include "kernels/process/log.h"
#include "server/api/head/parent_secret.h"

namespace diffserve {

ForwardExchange::ForwardExchange(ModelChildren& children, size_t model, std::string client,
                                 HttpRequest request, std::function<void()> wake,
                                 MakeError make_error)
    : children_(children),
      model_(model),
      client_(std::move(client)),
      request_(std::move(request)),
      wake_(std::move(wake)),
      make_error_(std::move(make_error)) {}

// nullopt: it is not there yet.
std::optional<Result<ChildUse>> ForwardExchange::TakeUse() {
  if (wait_ != nullptr) return wait_->Take();
  std::optional<Result<ChildUse>> use = children_.TryUse(model_, client_);
  if (!use) wait_ = children_.Ask(model_, client_, wake_);
  return use;
}

std::optional<HttpReply> ForwardExchange::Reply() {
  if (call_ == nullptr) {
    std::optional<Result<ChildUse>> use = TakeUse();
    if (!use) return std::nullopt;
    if (!use->ok()) return make_error_(use->status());
    use_ = **std::move(use);
    call_ = std::make_unique<UpstreamCall>(
        *request_.upstream,
        UpstreamRequest{.port = use_->http_port,
                        .head = std::move(request_.head),
                        .own_fields = {{kClientField, ClientFieldValue(use_->secret, client_)}},
                        .body = std::move(request_.body)},
        wake_);
  }
  std::optional<Result<HttpReply>> reply = call_->Reply();
  if (!reply) return std::nullopt;
  if (reply->ok()) return **std::move(reply);
  Log(LogLevel::kWarning, "forward_failed",
      {{"model", children_.name(model_)}, {"reason", reply->status().message()}});
  return make_error_(Status(
      StatusCode::kUnavailable,
      "the process of model " + children_.name(model_) + " ended before it answered; try again"));
}

}  // namespace diffserve
