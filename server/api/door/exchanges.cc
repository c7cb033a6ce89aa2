// SPDX-License-Identifier: Apache-2.0
#include "server/api/door/exchanges.h"

#include <variant>

#include "server/serving/status_codes.h"

namespace diffserve {

std::optional<HttpReply> AccountedExchange::Reply() {
  std::optional<HttpReply> reply = inner_->Reply();
  if (!reply) return reply;
  complete_(*reply);
  status_ = reply->status;
  if (!reply->streams) EndOnce();
  return reply;
}

bool AccountedExchange::Frames(std::string* bytes) {
  const bool last = inner_->Frames(bytes);
  if (last) EndOnce();
  return last;
}

void AccountedExchange::EndOnce() {
  if (std::exchange(ended_, true)) return;
  on_end_(status_.value_or(WireStatusOf(StatusCode::kCancelled).http));
}

std::optional<HttpReply> DeferredExchange::Reply() {
  if (inner_ == nullptr) {
    std::optional<HttpAnswer> answer = begin_();
    if (!answer) return std::nullopt;
    held_bytes_ = 0;
    if (auto* reply = std::get_if<HttpReply>(&*answer)) return std::move(*reply);
    inner_ = std::get<std::unique_ptr<HttpExchange>>(std::move(*answer));
  }
  return inner_->Reply();
}

}  // namespace diffserve
