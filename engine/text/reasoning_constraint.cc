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
      : rules_(std::move(rules)), end_(*rules_.end), answer_(std::move(answer)) {}

  Status Fill(std::span<uint32_t> mask) override {
    const Progress now = Now();
    if (now.place == Place::kOpening && answer_ != nullptr) {
      DS_RETURN_IF_ERROR(answer_->Fill(mask));
      Set(mask, rules_.begin->tokens().front());
      return {};
    }
    if (now.place == Place::kAnswer && answer_ != nullptr) return answer_->Fill(mask);
    if (const int32_t forced = MarkerToken(now); forced >= 0) {
      std::ranges::fill(mask, 0u);
      Set(mask, forced);
      return {};
    }
    AllowAll(mask, end_.vocab_size());
    if (now.place != Place::kReasoning || answer_ == nullptr) return {};
    for (const int32_t token : end_.Overshooting(now.matched)) Clear(mask, token);
    for (const int32_t token : end_.eos_token_ids()) Clear(mask, token);
    return {};
  }

  Status Accept(int32_t token) override {
    Progress now = Now();
    if (now.place == Place::kOpening) {
      const Result<bool> opens = Opens(token, &now);
      if (!opens.ok()) return opens.status();
      if (*opens) {
        history_.push_back(now);
        return {};
      }
      declined_ = true;
      const Status status = AcceptAnswer(token);
      declined_ = status.ok();
      return status;
    }
    if (now.place == Place::kAnswer) return AcceptAnswer(token);
    if (!MayReason(token, now)) {
      return Status(StatusCode::kInternal,
                    "token " + std::to_string(token) + " may not come in the reasoning");
    }
    now.matched = end_.Advance(now.matched, token);
    ++now.reasoned;
    if (now.matched == end_.size()) now.place = Place::kAnswer;
    history_.push_back(now);
    return {};
  }

  void Rollback(int count) override {
    const int of_answer = std::min(count, answer_tokens_);
    if (answer_ != nullptr && of_answer > 0) answer_->Rollback(of_answer);
    answer_tokens_ -= of_answer;
    if (answer_tokens_ == 0) declined_ = false;
    const auto before = static_cast<size_t>(count - of_answer);
    DS_CHECK(before <= history_.size(), "no more is taken back than was accepted");
    history_.resize(history_.size() - before);
  }

  std::vector<int32_t> Forced(int limit) override {
    const Progress now = Now();
    if (now.place == Place::kAnswer && answer_ != nullptr) return answer_->Forced(limit);
    if (MarkerToken(now) < 0) return {};
    const auto marker =
        std::span(end_.tokens()).subspan(static_cast<size_t>(now.reasoned - rules_.max_tokens));
    const auto rest = marker.first(std::min(marker.size(), static_cast<size_t>(limit)));
    return {rest.begin(), rest.end()};
  }

  std::unique_ptr<TokenConstraint> Clone() const override {
    auto copy = std::make_unique<ReasoningConstraint>(
        rules_, answer_ == nullptr ? nullptr : answer_->Clone());
    copy->history_ = history_;
    copy->declined_ = declined_;
    copy->answer_tokens_ = answer_tokens_;
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
  Progress Now() const {
    if (declined_) return {.place = Place::kAnswer};
    if (!history_.empty()) return history_.back();
    return {.place = rules_.begin == nullptr ? Place::kReasoning : Place::kOpening};
  }

  // Whether `token` belongs to the marker that opens reasoning, or to whitespace before it.
  Result<bool> Opens(int32_t token, Progress* now) {
    if (answer_ != nullptr) {
      if (token != rules_.begin->tokens().front()) return false;
      std::vector<uint32_t> mask((static_cast<size_t>(end_.vocab_size()) + 31) / 32);
      DS_RETURN_IF_ERROR(answer_->Fill(mask));
      if (Has(mask, token)) return false;
      *now = {.place = Place::kReasoning};
      return true;
    }
    const std::optional<size_t> matched = rules_.begin->Begin(now->matched, token);
    if (!matched) return false;
    if (*matched == rules_.begin->size())
      *now = {.place = Place::kReasoning};
    else
      now->matched = *matched;
    return true;
  }

  Status AcceptAnswer(int32_t token) {
    if (answer_ != nullptr) DS_RETURN_IF_ERROR(answer_->Accept(token));
    ++answer_tokens_;
    return {};
  }

  // The next token of the end marker once the budget is used up, else -1.
  int32_t MarkerToken(const Progress& now) const {
    if (now.place != Place::kReasoning || rules_.max_tokens < 0) return -1;
    const int beyond = now.reasoned - rules_.max_tokens;
    return beyond < 0 ? -1 : end_.tokens()[static_cast<size_t>(beyond)];
  }

  bool MayReason(int32_t token, const Progress& now) const {
    if (token < 0 || token >= end_.vocab_size()) return false;
    if (const int32_t forced = MarkerToken(now); forced >= 0) return token == forced;
    return answer_ == nullptr ||
           (!std::ranges::binary_search(end_.Overshooting(now.matched), token) &&
            std::ranges::find(end_.eos_token_ids(), token) == end_.eos_token_ids().end());
  }

  const ReasoningRules rules_;
  const TextMarker& end_;
  const std::unique_ptr<TokenConstraint> answer_;
  std::vector<Progress> history_;  // one entry after each token before the answer
  bool declined_ = false;          // the answer has begun without reasoning
  int answer_tokens_ = 0;
};

}  // namespace

std::unique_ptr<TokenConstraint> MakeReasoningConstraint(ReasoningRules rules,
                                                         std::unique_ptr<TokenConstraint> answer) {
  return std::make_unique<ReasoningConstraint>(std::move(rules), std::move(answer));
}

}  // namespace diffserve
