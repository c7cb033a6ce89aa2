// SPDX-License-Identifier: Apache-2.0
#include "engine/text/reasoning_constraint.h"

#include <algorithm>
#include <utility>

namespace diffserve {
namespace {

void Clear(std::span<uint32_t> mask, int32_t token) {
  mask[static_cast<size_t>(token) / 32] &= ~(1u << (token % 32));
}

void AllowAll(std::span<uint32_t> mask, int vocab_size) {
  std::ranges::fill(mask, ~0u);
  if (vocab_size % 32 != 0) mask.back() = (1u << (vocab_size % 32)) - 1;
}

bool Has(std::span<const uint32_t> mask, int32_t token) {
  return (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1u) != 0;
}

void Set(std::span<uint32_t> mask, int32_t token) {
  mask[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
}

class ReasoningConstraint : public TokenConstraint {
 public:
  ReasoningConstraint(ReasoningRules rules, std::unique_ptr<TokenConstraint> answer)
      : rules_(std::move(rules)),
        end_(*rules_.end),
        answer_(std::move(answer)),
        now_{.place = rules_.begin == nullptr ? Place::kReasoning : Place::kOpening} {}

  Status Fill(std::span<uint32_t> mask) override {
    if (now_.place == Place::kOpening && answer_ != nullptr) {
      DS_RETURN_IF_ERROR(answer_->Fill(mask));
      Set(mask, rules_.begin->tokens().front());
      return {};
    }
    if (now_.place == Place::kAnswer && answer_ != nullptr) return answer_->Fill(mask);
    if (const int32_t forced = MarkerToken(); forced >= 0) {
      std::ranges::fill(mask, 0u);
      Set(mask, forced);
      return {};
    }
    AllowAll(mask, end_.vocab_size());
    if (now_.place != Place::kReasoning || answer_ == nullptr) return {};
    for (const int32_t token : end_.Overshooting(now_.matched)) Clear(mask, token);
    for (const int32_t token : end_.eos_token_ids()) Clear(mask, token);
    return {};
  }

  Status Accept(int32_t token) override {
    if (now_.place == Place::kOpening) {
      const Result<bool> opens = Opens(token);
      if (!opens.ok() || *opens) return opens.status();
      DS_RETURN_IF_ERROR(AcceptAnswer(token));
      now_.place = Place::kAnswer;
      return {};
    }
    if (now_.place == Place::kAnswer) return AcceptAnswer(token);
    if (!MayReason(token)) {
      return Status(StatusCode::kInternal,
                    "token " + std::to_string(token) + " may not come in the reasoning");
    }
    now_.matched = end_.Advance(now_.matched, token);
    ++now_.reasoned;
    if (now_.matched == end_.size()) now_.place = Place::kAnswer;
    return {};
  }

  std::vector<int32_t> Forced(int limit) const override {
    if (now_.place == Place::kAnswer && answer_ != nullptr) return answer_->Forced(limit);
    if (MarkerToken() < 0) return {};
    const auto marker =
        std::span(end_.tokens()).subspan(static_cast<size_t>(now_.reasoned - rules_.max_tokens));
    const auto rest = marker.first(std::min(marker.size(), static_cast<size_t>(limit)));
    return {rest.begin(), rest.end()};
  }

  std::unique_ptr<TokenConstraint> Clone() const override {
    auto copy = std::make_unique<ReasoningConstraint>(
        rules_, answer_ == nullptr ? nullptr : answer_->Clone());
    copy->now_ = now_;
    return copy;
  }

 private:
  enum class Place {
    kOpening,  // the model may still open reasoning
    kReasoning,
    kAnswer,
  };
  struct Progress {
    Place place = Place::kReasoning;
    size_t matched = 0;  // matched bytes of the marker that may come next
    int reasoned = 0;    // reasoning tokens, including its end marker's
  };

  // Whether `token` belongs to the marker that opens reasoning, or to whitespace before it. Goes on
  // in the marker then.
  Result<bool> Opens(int32_t token) {
    if (answer_ != nullptr) {
      if (token != rules_.begin->tokens().front()) return false;
      std::vector<uint32_t> mask((static_cast<size_t>(end_.vocab_size()) + 31) / 32);
      DS_RETURN_IF_ERROR(answer_->Fill(mask));
      if (Has(mask, token)) return false;
      now_ = {.place = Place::kReasoning};
      return true;
    }
    const std::optional<size_t> matched = rules_.begin->Begin(now_.matched, token);
    if (!matched) return false;
    if (*matched == rules_.begin->size())
      now_ = {.place = Place::kReasoning};
    else
      now_.matched = *matched;
    return true;
  }

  Status AcceptAnswer(int32_t token) {
    return answer_ == nullptr ? Status() : answer_->Accept(token);
  }

  // The next token of the end marker once the budget is used up, else -1.
  int32_t MarkerToken() const {
    if (now_.place != Place::kReasoning || rules_.max_tokens < 0) return -1;
    const int beyond = now_.reasoned - rules_.max_tokens;
    return beyond < 0 ? -1 : end_.tokens()[static_cast<size_t>(beyond)];
  }

  bool MayReason(int32_t token) const {
    if (token < 0 || token >= end_.vocab_size()) return false;
    if (const int32_t forced = MarkerToken(); forced >= 0) return token == forced;
    return answer_ == nullptr ||
           (!std::ranges::binary_search(end_.Overshooting(now_.matched), token) &&
            std::ranges::find(end_.eos_token_ids(), token) == end_.eos_token_ids().end());
  }

  const ReasoningRules rules_;
  const TextMarker& end_;
  const std::unique_ptr<TokenConstraint> answer_;
  Progress now_;
};

}  // namespace

std::unique_ptr<TokenConstraint> MakeReasoningConstraint(ReasoningRules rules,
                                                         std::unique_ptr<TokenConstraint> answer) {
  return std::make_unique<ReasoningConstraint>(std::move(rules), std::move(answer));
}

}  // namespace diffserve
