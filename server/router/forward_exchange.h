// SPDX-License-Identifier: Apache-2.0
// ForwardExchange: a request that a model's process answers. It waits for the process, then passes
// the request and the reply through unchanged. Destroying it before its end closes the connection
// to the process, which cancels the work there.
// Thread safety: only on its connection's I/O thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/http/client/upstream.h"
#include "server/http/message.h"
#include "server/router/children/model_children.h"

namespace diffserve {

class ForwardExchange : public HttpExchange {
 public:
  using MakeError = std::function<HttpReply(const Status& status)>;

  // `children` outlives it. `client`: ClientName. `make_error` makes the reply to an error before
  // the first byte.
  ForwardExchange(ModelChildren& children, size_t model, std::string client, HttpRequest request,
                  std::function<void()> wake, MakeError make_error);

  std::optional<HttpReply> Reply() override;
  bool Frames(std::string* bytes) override { return call_->Frames(bytes); }
  size_t HeldBytes() const override {
    return call_ == nullptr ? request_.body.size() : call_->HeldBytes();
  }
  bool IsBroken() const override { return call_->IsBroken(); }

 private:
  std::optional<Result<ChildUse>> TakeUse();

  ModelChildren& children_;
  const size_t model_;
  const std::string client_;
  HttpRequest request_;
  const std::function<void()> wake_;
  const MakeError make_error_;
  std::shared_ptr<ModelChildren::Wait> wait_;
  ChildUse use_;
  std::unique_ptr<UpstreamCall> call_;  // last: it ends before the use does
};

}  // namespace diffserve
