// SPDX-License-Identifier: Apache-2.0
// Exchanges that hold another one: the front door's, which completes its reply, and an answer that
// begins after other work. An exchange is used on its connection's thread; destroying it before its
// end cancels the work.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/http/message.h"

namespace diffserve {

inline constexpr size_t kMaxInlineBodyBytes = 64 << 10;  // parsed in well under a millisecond

// Decorates an exchange: completes its reply, and reports its end exactly once, when the last byte
// is made or when it is destroyed before.
class AccountedExchange : public HttpExchange {
 public:
  AccountedExchange(std::unique_ptr<HttpExchange> inner,
                    std::function<void(HttpReply& reply)> complete,
                    std::function<void(int status)> on_end)  // 499 if there was no reply
      : inner_(std::move(inner)), complete_(std::move(complete)), on_end_(std::move(on_end)) {}
  ~AccountedExchange() override { EndOnce(); }

  std::optional<HttpReply> Reply() override;
  bool Frames(std::string* bytes) override;
  bool EndWithError() override { return inner_->EndWithError(); }
  bool EndedWithError() const override { return inner_->EndedWithError(); }
  size_t HeldBytes() const override { return inner_->HeldBytes(); }
  bool IsBroken() const override { return inner_->IsBroken(); }

 private:
  void EndOnce();

  const std::unique_ptr<HttpExchange> inner_;
  const std::function<void(HttpReply&)> complete_;
  const std::function<void(int)> on_end_;
  bool ended_ = false;
  std::optional<int> status_;
};

// An answer that begins later.
class DeferredExchange : public HttpExchange {
 public:
  // `begin` is called at each wake until it returns the answer. `held_bytes`: of the request, which
  // it keeps until then.
  DeferredExchange(size_t held_bytes, std::function<std::optional<HttpAnswer>()> begin)
      : held_bytes_(held_bytes), begin_(std::move(begin)) {}
  std::optional<HttpReply> Reply() override;
  bool Frames(std::string* bytes) override { return inner_->Frames(bytes); }
  bool EndWithError() override { return inner_ != nullptr && inner_->EndWithError(); }
  bool EndedWithError() const override { return inner_ != nullptr && inner_->EndedWithError(); }
  size_t HeldBytes() const override { return inner_ ? inner_->HeldBytes() : held_bytes_; }
  bool IsBroken() const override { return inner_ != nullptr && inner_->IsBroken(); }

 private:
  size_t held_bytes_;
  const std::function<std::optional<HttpAnswer>()> begin_;
  std::unique_ptr<HttpExchange> inner_;
};

}  // namespace diffserve
