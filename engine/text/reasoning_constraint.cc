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

class ReasoningConstraint : public TokenConstraint {
 public:
  ReasoningConstraint(std::shared_ptr<const ReasoningMarker> marker, int max_tokens,
                      std::unique_ptr<TokenConstraint> answer)
      : marker_(std::move(marker)), max_tokens_(max_tokens), answer_(std::move(answer)) {}

  Status Fill(std::span<uint32_t> mask) override {
    if (IsOver()) {
      if (answer_ != nullptr) return answer_->Fill(mask);
      AllowAll(mask, marker_->vocab_size());
      return {};
    }
    if (const int32_t forced = Forced(); forced >= 0) {
      std::ranges::fill(mask, 0u);
      mask[static_cast<size_t>(forced) / 32] |= 1u << (forced % 32);
      return {};
    }
    AllowAll(mask, marker_->vocab_size());
    if (answer_ == nullptr) return {};
    for (const int32_t token : marker_->Overshooting(matched())) Clear(mask, token);
    for (const int32_t token : marker_->eos_token_ids()) Clear(mask, token);
    return {};
  }

  Status Accept(int32_t token) override {
    if (IsOver()) {
      if (answer_ != nullptr) {
        const Status status = answer_->Accept(token);
        if (!status.ok()) return status;
      }
      ++answer_tokens_;
      return {};
    }
    if (!MayReason(token)) {
      return Status(StatusCode::kInternal,
                    "token " + std::to_string(token) + " may not come in the reasoning");
    }
    matched_.push_back(marker_->Advance(matched(), token));
    return {};
  }

  void Rollback(int count) override {
    const int of_answer = std::min(count, answer_tokens_);
    if (answer_ != nullptr && of_answer > 0) answer_->Rollback(of_answer);
    answer_tokens_ -= of_answer;
    const auto of_reasoning = static_cast<size_t>(count - of_answer);
    DS_CHECK(of_reasoning <= matched_.size(), "no more is taken back than was accepted");
    matched_.resize(matched_.size() - of_reasoning);
  }

  std::unique_ptr<TokenConstraint> Clone() const override {
    auto copy = std::make_unique<ReasoningConstraint>(
        marker_, max_tokens_, answer_ == nullptr ? nullptr : answer_->Clone());
    copy->matched_ = matched_;
    copy->answer_tokens_ = answer_tokens_;
    return copy;
  }

 private:
  size_t matched() const { return matched_.empty() ? 0 : matched_.back(); }
  bool IsOver() const { return matched() == marker_->size(); }

  // The next token of the marker once the budget is used up, else -1.
  int32_t Forced() const {
    if (max_tokens_ < 0 || matched_.size() < static_cast<size_t>(max_tokens_)) return -1;
    return marker_->tokens()[matched_.size() - static_cast<size_t>(max_tokens_)];
  }

  bool MayReason(int32_t token) const {
    if (token < 0 || token >= marker_->vocab_size()) return false;
    if (const int32_t forced = Forced(); forced >= 0) return token == forced;
    return answer_ == nullptr ||
           (!std::ranges::binary_search(marker_->Overshooting(matched()), token) &&
            std::ranges::find(marker_->eos_token_ids(), token) == marker_->eos_token_ids().end());
  }

  const std::shared_ptr<const ReasoningMarker> marker_;
  const int max_tokens_;
  const std::unique_ptr<TokenConstraint> answer_;
  std::vector<size_t> matched_;  // of the marker, after each token of reasoning
  int answer_tokens_ = 0;
};

}  // namespace

ReasoningMarker::ReasoningMarker(const Tokenizer& tokenizer, std::string text, int vocab_size,
                                 std::vector<int32_t> eos_token_ids)
    : tokenizer_(tokenizer),
      text_(std::move(text)),
      vocab_size_(vocab_size),
      eos_token_ids_(std::move(eos_token_ids)),
      borders_(text_.size(), 0) {
  for (size_t i = 1; i < text_.size(); ++i) {
    size_t border = borders_[i - 1];
    while (border > 0 && text_[i] != text_[border]) border = borders_[border - 1];
    borders_[i] = text_[i] == text_[border] ? border + 1 : 0;
  }
}

// REQUIRES: matched < size().
size_t ReasoningMarker::Step(size_t matched, char c) const {
  while (matched > 0 && text_[matched] != c) matched = borders_[matched - 1];
  return text_[matched] == c ? matched + 1 : 0;
}

size_t ReasoningMarker::Advance(size_t matched, int32_t token) const {
  if (!tokenizer_.table().Contains(token)) return matched;
  for (const char c : tokenizer_.table().Bytes(token)) {
    matched = Step(matched, c);
    if (matched == size()) break;
  }
  return matched;
}

void ReasoningMarker::FindOvershooting() {
  overshooting_.resize(size());
  const int tokens = std::min(vocab_size_, tokenizer_.vocab_size());
  for (int32_t token = 0; token < tokens; ++token) {
    const std::string_view bytes = tokenizer_.table().Bytes(token);
    const size_t last = bytes.rfind(text_.back(), bytes.size() < 2 ? 0 : bytes.size() - 2);
    if (bytes.size() < 2 || last == bytes.npos) continue;
    for (size_t begin = 0; begin < size(); ++begin) {
      size_t matched = begin;
      for (size_t i = 0; i + 1 < bytes.size() && matched < size(); ++i)
        matched = Step(matched, bytes[i]);
      if (matched == size()) overshooting_[begin].push_back(token);
    }
  }
}

Result<std::shared_ptr<const ReasoningMarker>> ReasoningMarker::Make(
    const Tokenizer& tokenizer, const std::string& text, int vocab_size,
    std::vector<int32_t> eos_token_ids) {
  if (text.empty() || text.size() > kMaxBytes) {
    return InvalidArgument("the end of the reasoning has " + std::to_string(text.size()) +
                           " bytes; allowed are 1 .. " + std::to_string(kMaxBytes));
  }
  if (tokenizer.table().decoding == TokenTable::Decoding::kLibrary) {
    return Status(StatusCode::kUnimplemented,
                  "this model's tokenizer does not say what bytes a token stands for, which the "
                  "end of the reasoning is found by");
  }
  std::shared_ptr<ReasoningMarker> marker(
      new ReasoningMarker(tokenizer, text, vocab_size, std::move(eos_token_ids)));
  if (marker->borders_.back() != 0)
    return InvalidArgument("the end of the reasoning, '" + text + "', begins with its own end");
  Result<std::vector<int32_t>> tokens = tokenizer.Encode(text, false);
  if (!tokens.ok()) return tokens.status();
  size_t matched = 0;
  for (size_t i = 0; i < tokens->size() && matched < marker->size(); ++i) {
    if ((*tokens)[i] >= vocab_size) break;
    matched = marker->Advance(matched, (*tokens)[i]);
    if (i + 1 < tokens->size() && matched == marker->size()) matched = 0;
  }
  if (matched != marker->size())
    return InvalidArgument("the model's tokens do not spell the end of the reasoning, '" + text +
                           "'");
  marker->tokens_ = std::move(tokens).value();
  marker->FindOvershooting();
  return std::shared_ptr<const ReasoningMarker>(std::move(marker));
}

std::unique_ptr<TokenConstraint> MakeReasoningConstraint(
    std::shared_ptr<const ReasoningMarker> marker, int max_tokens,
    std::unique_ptr<TokenConstraint> answer) {
  return std::make_unique<ReasoningConstraint>(std::move(marker), max_tokens, std::move(answer));
}

}  // namespace diffserve
