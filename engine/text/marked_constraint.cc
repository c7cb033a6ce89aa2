// SPDX-License-Identifier: Apache-2.0
#include "engine/text/marked_constraint.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace diffserve {
namespace {

constexpr size_t kMaxSpacesBefore = 20;  // bytes, before the marker or the form

class MarkedConstraint : public TokenConstraint {
 public:
  MarkedConstraint(MarkedAnswer marked, std::unique_ptr<TokenConstraint> form)
      : marked_(std::move(marked)), form_(std::move(form)) {}

  Status Fill(std::span<uint32_t> mask) override {
    if (!now_.marked) return form_->Fill(mask);
    if (!now_.form) return FillMarked(mask);
    std::vector<uint32_t> of_marked(mask.size());
    const Status marked = FillMarked(of_marked);
    if (const Status form = form_->Fill(mask); !form.ok()) {
      if (!marked.ok()) return form;
      std::ranges::fill(mask, 0u);
    }
    if (!marked.ok()) return {};
    for (size_t i = 0; i < mask.size(); ++i) mask[i] |= of_marked[i];
    return {};
  }

  Status Accept(int32_t token) override {
    Progress next = now_;
    const std::string_view text = marked_.marker->TextOf(token);
    const bool is_space = now_.matched == 0 && !text.empty() && TextMarker::IsSpace(text);
    bool is_of_form = now_.form;
    if (now_.marked && now_.form) {
      // Fill is asked first: a refused Accept would end that constraint for good.
      std::vector<uint32_t> mask(MaskWords(marked_.marker->vocab_size()));
      next.marked = (FillMarked(mask).ok() && IsAllowed(mask, token)) || is_space;
      is_of_form = form_->Fill(mask).ok() && IsAllowed(mask, token);
      next.form = is_of_form || (is_space && IsFree(text));
      if (!next.form && (!next.marked || is_space))
        return Status(StatusCode::kInternal,
                      "token " + std::to_string(token) + " begins neither the marker nor the form");
    }
    if (next.marked && !is_space) {
      if (marked_.answer != nullptr) DS_RETURN_IF_ERROR(marked_.answer->Accept(token));
      DS_RETURN_IF_ERROR(Match(text, &next));
    }
    if (is_space) next.spaces += text.size();
    if (is_of_form && next.form) DS_RETURN_IF_ERROR(form_->Accept(token));
    now_ = next;
    return {};
  }

  Status AcceptBytes(std::string_view bytes) override {
    Progress next = now_;
    if (next.marked && marked_.answer != nullptr) next.marked = Try(bytes, &marked_.answer);
    if (next.marked && !Match(bytes, &next).ok()) next.marked = false;
    if (next.form) next.form = Try(bytes, &form_);
    if (!next.marked && !next.form)
      return Status(StatusCode::kInternal, "a text begins neither the marker nor the form");
    now_ = next;
    return {};
  }

  // What one of the two forces is no guess while the model may choose the other. The marker is left
  // out as well: it may be spelled in tokens that the grammar of calls does not know it by.
  std::vector<int32_t> Forced(int limit) const override {
    if (!now_.marked) return form_->Forced(limit);
    if (now_.form || marked_.answer == nullptr || now_.matched < marked_.marker->size()) return {};
    return marked_.answer->Forced(limit);
  }

  std::unique_ptr<TokenConstraint> Clone() const override {
    MarkedAnswer marked{marked_.marker, nullptr, marked_.after_spaces, marked_.excludes_form};
    if (marked_.answer != nullptr) marked.answer = marked_.answer->Clone();
    auto copy = std::make_unique<MarkedConstraint>(std::move(marked), form_->Clone());
    copy->now_ = now_;
    return copy;
  }

 private:
  // State after the accepted tokens: which of the two constraints accepted them, and the matched
  // length of the marker.
  struct Progress {
    bool marked = true;
    bool form = true;
    size_t matched = 0;
    size_t spaces = 0;  // bytes of whitespace before the marker or the form
  };

  // Whether this whitespace may come before the marker and the form, and is part of neither.
  bool IsFree(std::string_view text) const {
    return marked_.after_spaces && now_.spaces + text.size() <= kMaxSpacesBefore;
  }

  static bool IsAllowed(std::span<const uint32_t> mask, int32_t token) {
    return token >= 0 && static_cast<size_t>(token) < mask.size() * kMaskWordBits &&
           MaskHas(mask.data(), token);
  }

  // Replaces the constraint by its state after `bytes`, if it accepts them.
  static bool Try(std::string_view bytes, std::unique_ptr<TokenConstraint>* constraint) {
    std::unique_ptr<TokenConstraint> copy = (*constraint)->Clone();
    if (!copy->AcceptBytes(bytes).ok()) return false;
    *constraint = std::move(copy);
    return true;
  }

  // Goes on in the marker.
  Status Match(std::string_view text, Progress* next) const {
    if (next->matched == marked_.marker->size()) return {};
    const auto match = marked_.marker->Begin(next->matched, text);
    if (!match)
      return Status(StatusCode::kInternal,
                    "'" + std::string(text) + "' does not go on with the marker");
    next->matched = match->matched;
    if (marked_.excludes_form && next->matched == marked_.marker->size()) next->form = false;
    return {};
  }

  Status FillMarked(std::span<uint32_t> mask) {
    const TextMarker& marker = *marked_.marker;
    const int vocab_size = marker.vocab_size();
    std::ranges::fill(mask, ~0u);
    if (vocab_size % 32 != 0) mask.back() = (1u << (vocab_size % 32)) - 1;
    if (marked_.answer != nullptr) DS_RETURN_IF_ERROR(marked_.answer->Fill(mask));
    if (now_.matched == marker.size()) return {};
    std::vector<uint32_t> of_marker(mask.size());
    bool any = false;
    for (const int32_t token : marker.Next(now_.matched)) {
      if (!IsAllowed(mask, token)) continue;
      of_marker[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
      any = true;
    }
    std::ranges::copy(of_marker, mask.begin());
    if (!any || now_.matched > 0)
      return any ? Status() : Status(StatusCode::kInternal, "no token goes on with the marker");
    for (const int32_t token : marker.spaces()) {
      if (IsFree(marker.TextOf(token))) mask[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
    }
    return {};
  }

  MarkedAnswer marked_;
  std::unique_ptr<TokenConstraint> form_;
  Progress now_;
};

}  // namespace

std::unique_ptr<TokenConstraint> MakeMarkedConstraint(MarkedAnswer marked,
                                                      std::unique_ptr<TokenConstraint> form) {
  return std::make_unique<MarkedConstraint>(std::move(marked), std::move(form));
}

}  // namespace diffserve
