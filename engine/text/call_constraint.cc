// SPDX-License-Identifier: Apache-2.0
#include "engine/text/call_constraint.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace diffserve {
namespace {

class CallConstraint : public TokenConstraint {
 public:
  CallConstraint(std::shared_ptr<const TextMarker> marker, std::unique_ptr<TokenConstraint> calls,
                 std::unique_ptr<TokenConstraint> form)
      : marker_(std::move(marker)), calls_(std::move(calls)), form_(std::move(form)) {}

  Status Fill(std::span<uint32_t> mask) override {
    if (!now_.calls) return form_->Fill(mask);
    if (!now_.form) return FillCalls(mask);
    std::vector<uint32_t> of_calls(mask.size());
    const Status calls = FillCalls(of_calls);
    if (const Status form = form_->Fill(mask); !form.ok()) {
      if (!calls.ok()) return form;
      std::ranges::fill(mask, 0u);
    }
    if (!calls.ok()) return {};
    for (size_t i = 0; i < mask.size(); ++i) mask[i] |= of_calls[i];
    return {};
  }

  Status Accept(int32_t token) override {
    Progress next = now_;
    if (now_.calls && now_.form) {
      // Fill is asked first: a refused Accept would end that constraint for good.
      std::vector<uint32_t> mask(MaskWords(marker_->vocab_size()));
      next.calls = FillCalls(mask).ok() && IsAllowed(mask, token);
      next.form = form_->Fill(mask).ok() && IsAllowed(mask, token);
      if (!next.calls && !next.form)
        return Status(StatusCode::kInternal,
                      "token " + std::to_string(token) + " begins neither a call nor the form");
    }
    if (next.form) DS_RETURN_IF_ERROR(form_->Accept(token));
    if (next.calls) {
      if (calls_ != nullptr) DS_RETURN_IF_ERROR(calls_->Accept(token));
      if (now_.matched < marker_->size()) {
        const std::optional<size_t> matched = marker_->Begin(now_.matched, token);
        if (!matched)
          return Status(StatusCode::kInternal,
                        "token " + std::to_string(token) + " does not go on with the marker");
        next.matched = *matched;
      }
    }
    now_ = next;
    return {};
  }

  // What one of the two forces is no guess while the model may choose the other. The marker is left
  // out as well: it may be spelled in tokens that the grammar of calls does not know it by.
  std::vector<int32_t> Forced(int limit) const override {
    if (!now_.calls) return form_->Forced(limit);
    if (now_.form || calls_ == nullptr || now_.matched < marker_->size()) return {};
    return calls_->Forced(limit);
  }

  std::unique_ptr<TokenConstraint> Clone() const override {
    auto copy = std::make_unique<CallConstraint>(
        marker_, calls_ == nullptr ? nullptr : calls_->Clone(), form_->Clone());
    copy->now_ = now_;
    return copy;
  }

 private:
  // State after the accepted tokens: which of the two constraints accepted them, and the matched
  // length of the marker.
  struct Progress {
    bool calls = true;
    bool form = true;
    size_t matched = 0;
  };

  static bool IsAllowed(std::span<const uint32_t> mask, int32_t token) {
    return token >= 0 && static_cast<size_t>(token) < mask.size() * kMaskWordBits &&
           MaskHas(mask.data(), token);
  }

  // A call begins with the marker itself, not with spaces.
  Status FillCalls(std::span<uint32_t> mask) {
    const int vocab_size = marker_->vocab_size();
    std::ranges::fill(mask, ~0u);
    if (vocab_size % 32 != 0) mask.back() = (1u << (vocab_size % 32)) - 1;
    if (calls_ != nullptr) DS_RETURN_IF_ERROR(calls_->Fill(mask));
    if (now_.matched == marker_->size()) return {};
    bool any = false;
    for (int32_t token = 0; token < vocab_size; ++token) {
      if (!IsAllowed(mask, token)) continue;
      const std::optional<size_t> matched = marker_->Begin(now_.matched, token);
      if (matched && *matched > now_.matched)
        any = true;
      else
        mask[static_cast<size_t>(token) / 32] &= ~(1u << (token % 32));
    }
    return any ? Status() : Status(StatusCode::kInternal, "no token goes on with the marker");
  }

  const std::shared_ptr<const TextMarker> marker_;
  const std::unique_ptr<TokenConstraint> calls_;
  const std::unique_ptr<TokenConstraint> form_;
  Progress now_;
};

}  // namespace

std::unique_ptr<TokenConstraint> MakeCallConstraint(std::shared_ptr<const TextMarker> marker,
                                                    std::unique_ptr<TokenConstraint> calls,
                                                    std::unique_ptr<TokenConstraint> form) {
  return std::make_unique<CallConstraint>(std::move(marker), std::move(calls), std::move(form));
}

}  // namespace diffserve
