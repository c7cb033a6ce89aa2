// SPDX-License-Identifier: Apache-2.0
#include "engine/text/reasoning_constraint.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace diffserve {
namespace {

constexpr size_t kMaxSpaces = 20;  // after the reasoning, where the answer allows none

void Clear(std::span<uint32_t> mask, int32_t token) {
  mask[static_cast<size_t>(token) / 32] &= ~(1u << (token % 32));
}

void AllowAll(std::span<uint32_t> mask, int vocab_size) {
  std::ranges::fill(mask, ~0u);
  if (vocab_size % 32 != 0) mask.back() = (1u << (vocab_size % 32)) - 1;
}

void Set(std::span<uint32_t> mask, int32_t token) {
  mask[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
}

// A text without the whitespace that it begins with.
std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && TextMarker::IsSpace(text.substr(0, 1))) text.remove_prefix(1);
  return text;
}

class ReasoningConstraint : public TokenConstraint {
 public:
  ReasoningConstraint(ReasoningRules rules, AnswerAfterReasoning answer)
      : rules_(std::move(rules)),
        end_(*rules_.end),
        answer_(std::move(answer.form)),
        after_spaces_(std::move(answer.after_spaces)),
        now_{.place = rules_.begin == nullptr ? Place::kReasoning : Place::kOpening} {}

  Status Fill(std::span<uint32_t> mask) override {
    if (now_.place == Place::kAnswer && answer_ != nullptr) return answer_->Fill(mask);
    if (now_.place == Place::kGap) return FillGap(mask);
    if (const int32_t forced = MarkerToken(); forced >= 0) {
      std::ranges::fill(mask, 0u);
      Set(mask, forced);
      return {};
    }
    AllowAll(mask, end_.vocab_size());
    if (answer_ == nullptr) return {};
    const size_t matched = now_.place == Place::kReasoning ? now_.matched : 0;
    RefuseOvershooting(matched, mask);
    for (const int32_t token : end_.eos_token_ids()) Clear(mask, token);
    return {};
  }

  Status Accept(int32_t token) override {
    if (now_.place == Place::kAnswer) return answer_ == nullptr ? Status() : answer_->Accept(token);
    if (now_.place == Place::kGap) return AcceptInGap(token);
    if (!MayReason(token)) {
      return Status(StatusCode::kInternal,
                    "token " + std::to_string(token) + " is not allowed before the reasoning ends");
    }
    std::string_view text = end_.TextOf(token);
    if (now_.place == Place::kOpening) return Open(text);
    ++now_.reasoned;
    return Reason(text);
  }

  std::vector<int32_t> Forced(int limit) const override {
    const bool answers = now_.place == Place::kAnswer || now_.place == Place::kGap;
    if (answers && answer_ != nullptr) return answer_->Forced(limit);
    if (MarkerToken() < 0) return {};
    const std::span rest(RestOfMarker());
    const auto forced = rest.first(std::min(rest.size(), static_cast<size_t>(limit)));
    return {forced.begin(), forced.end()};
  }

  std::unique_ptr<TokenConstraint> Clone() const override {
    AnswerAfterReasoning answer;
    if (answer_ != nullptr) answer.form = answer_->Clone();
    if (after_spaces_ != nullptr) answer.after_spaces = after_spaces_->Clone();
    auto copy = std::make_unique<ReasoningConstraint>(rules_, std::move(answer));
    copy->now_ = now_;
    return copy;
  }

 private:
  enum class Place {
    kOpening,  // the marker that opens the reasoning
    kReasoning,
    kGap,  // whitespace between the reasoning and the answer, which belongs to neither
    kAnswer,
  };
  struct Progress {
    Place place = Place::kReasoning;
    size_t matched = 0;  // matched bytes of the marker that may come next
    int reasoned = 0;    // reasoning tokens, including its end marker's
    size_t spaces = 0;   // bytes in the gap
  };

  // Goes on in the opening marker, or in the whitespace before it.
  Status Open(std::string_view text) {
    const auto match = rules_.begin->Begin(now_.matched, text);
    if (!match) {
      if (answer_ != nullptr)
        return Status(StatusCode::kInternal, "'" + std::string(text) + "' opens no reasoning");
      now_.place = Place::kAnswer;
      return {};
    }
    now_.matched = match->matched;
    if (match->matched < rules_.begin->size()) return {};
    now_ = {.place = Place::kReasoning};
    return Reason(match->rest);
  }

  Status Reason(std::string_view text) {
    const TextMarker::Match match = end_.Advance(now_.matched, text);
    now_.matched = match.matched;
    if (match.matched < end_.size()) return {};
    const std::string_view begun = Trimmed(match.rest);
    now_.spaces = match.rest.size() - begun.size();
    if (answer_ != nullptr && begun.empty()) {
      now_.place = Place::kGap;
      return {};
    }
    return BeginAnswer(answer_ == nullptr ? Status() : answer_->AcceptBytes(begun));
  }

  // The answer after text that comes directly after the end marker; nullptr: it may not.
  std::unique_ptr<TokenConstraint> AnswerAfter(std::string_view text) const {
    std::unique_ptr<TokenConstraint> copy = answer_->Clone();
    return copy->AcceptBytes(text).ok() ? std::move(copy) : nullptr;
  }

  // Whether this text may come directly after the end marker, in the same token.
  bool MayFollow(std::string_view text) const {
    const std::string_view begun = Trimmed(text);
    if (begun.empty()) return true;
    const std::unique_ptr<TokenConstraint> after = AnswerAfter(begun);
    std::vector<uint32_t> mask(MaskWords(end_.vocab_size()));
    return after != nullptr && after->Fill(mask).ok();
  }

  // Clears the tokens that complete the end marker and go on with text that begins no answer. A
  // vocabulary has hundreds with `>`, so a first byte that may not come is tried once.
  void RefuseOvershooting(size_t matched, std::span<uint32_t> mask) const {
    std::string refused;
    for (const int32_t token : end_.Overshooting(matched)) {
      const std::string_view begun = Trimmed(end_.Advance(matched, end_.TextOf(token)).rest);
      if (begun.empty()) continue;
      const bool known = refused.find(begun.front()) != refused.npos;
      if (!known && MayFollow(begun)) continue;
      Clear(mask, token);
      if (!known && AnswerAfter(begun.substr(0, 1)) == nullptr) refused += begun.front();
    }
  }

  // Whether the token is whitespace that the gap still has room for.
  bool IsSpace(std::string_view text) const {
    return !text.empty() && TextMarker::IsSpace(text) && now_.spaces + text.size() <= kMaxSpaces;
  }

  Status FillGap(std::span<uint32_t> mask) {
    DS_RETURN_IF_ERROR(answer_->Fill(mask));
    std::vector<uint32_t> after(mask.size());
    if (after_spaces_ != nullptr && after_spaces_->Fill(after).ok()) {
      for (size_t i = 0; i < mask.size(); ++i) mask[i] |= after[i];
    }
    for (const int32_t token : end_.spaces()) {
      if (IsSpace(end_.TextOf(token))) Set(mask, token);
    }
    return {};
  }

  // Whitespace that the answer allows is the answer's.
  Status AcceptInGap(int32_t token) {
    const std::string_view text = end_.TextOf(token), begun = Trimmed(text);
    if (begun.size() == text.size()) return BeginAnswer(answer_->Accept(token));
    std::vector<uint32_t> mask(MaskWords(end_.vocab_size()));
    DS_RETURN_IF_ERROR(answer_->Fill(mask));
    if (MaskHas(mask.data(), token)) return BeginAnswer(answer_->Accept(token));
    if (!begun.empty()) return BeginAnswer(answer_->AcceptBytes(begun));
    if (IsSpace(text)) {
      now_.spaces += text.size();
      return {};
    }
    return Status(StatusCode::kInternal, "too much whitespace after the reasoning");
  }

  Status BeginAnswer(Status begun) {
    now_.place = Place::kAnswer;
    after_spaces_.reset();
    return begun;
  }

  // What is missing of the end marker.
  const std::vector<int32_t>& RestOfMarker() const {
    const std::vector<int32_t>& rest = end_.Rest(now_.matched);
    return rest.empty() ? end_.Rest(0) : rest;
  }

  // The next token of the end marker once the budget is used up, else -1.
  int32_t MarkerToken() const {
    if (now_.place != Place::kReasoning || rules_.max_tokens < 0) return -1;
    return now_.reasoned < rules_.max_tokens ? -1 : RestOfMarker().front();
  }

  bool MayReason(int32_t token) const {
    if (token < 0 || token >= end_.vocab_size()) return false;
    if (const int32_t forced = MarkerToken(); forced >= 0) return token == forced;
    if (answer_ == nullptr) return true;
    if (std::ranges::find(end_.eos_token_ids(), token) != end_.eos_token_ids().end()) return false;
    const size_t matched = now_.place == Place::kReasoning ? now_.matched : 0;
    const TextMarker::Match match = end_.Advance(matched, end_.TextOf(token));
    return match.matched < end_.size() || MayFollow(match.rest);
  }

  const ReasoningRules rules_;
  const TextMarker& end_;
  const std::unique_ptr<TokenConstraint> answer_;
  std::unique_ptr<TokenConstraint> after_spaces_;  // nullptr: unknown, or no longer needed
  Progress now_;
};

}  // namespace

std::unique_ptr<TokenConstraint> MakeReasoningConstraint(ReasoningRules rules,
                                                         AnswerAfterReasoning answer) {
  return std::make_unique<ReasoningConstraint>(std::move(rules), std::move(answer));
}

}  // namespace diffserve
