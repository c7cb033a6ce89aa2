// SPDX-License-Identifier: Apache-2.0
#include "engine/draw_masks.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "engine/contract/token_constraint.h"
#include "kernels/base/thread_pool.h"
#include "kernels/process/check.h"

namespace diffserve {
namespace {

bool HasMasks(const PlannedSequence& planned) {
  const Request& request = *planned.request;
  return planned.samples > 0 && (request.constraint != nullptr ||
                                 request.allowed_tokens != nullptr || request.bad_words != nullptr);
}

bool IsEmpty(std::span<const uint32_t> mask) {
  return std::ranges::all_of(mask, [](uint32_t word) { return word == 0; });
}

// Whether drawing `token` ends the sequence, unless min_tokens bans it.
bool Ends(const Request& request, int32_t token) {
  const auto is_in = [token](const std::vector<int32_t>& ids) {
    return std::ranges::find(ids, token) != ids.end();
  };
  return (!request.sampling.ignore_eos && is_in(request.eos_token_ids)) ||
         is_in(request.sampling.stop_token_ids);
}

// Whether the sequence has generated all but the last token of `word` just before `position`.
bool Precedes(const PlannedSequence& planned, const std::vector<int32_t>& word, int position) {
  const int first = position - static_cast<int>(word.size()) + 1;
  if (first < static_cast<int>(planned.request->prompt.size())) return word.size() == 1;
  for (int i = first; i < position; ++i) {
    if (planned.TokenAt(i) != word[static_cast<size_t>(i - first)]) return false;
  }
  return true;
}

}  // namespace

void DrawMasks::Fill(const StepPlan& plan) {
  entries_.assign(plan.sequences.size(), {});
  masked_.clear();
  int32_t num_masks = 0;
  int num_constraints = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const PlannedSequence& planned = plan.sequences[i];
    entries_[i].num_draws = planned.samples;
    if (!HasMasks(planned)) continue;
    masked_.push_back(i);
    entries_[i].first = num_masks;
    num_masks += planned.samples;
    num_constraints += planned.request->constraint != nullptr ? 1 : 0;
  }
  words_.resize(static_cast<size_t>(num_masks) * MaskWords(vocab_size_));
  std::atomic<size_t> next{0};
  const auto fill = [&](int) {
    for (size_t i = next.fetch_add(1); i < masked_.size(); i = next.fetch_add(1))
      FillOne(plan.sequences[masked_[i]], entries_[masked_[i]]);
  };
  if (pool_ != nullptr && num_constraints > 1)
    pool_->Run(fill);
  else
    fill(0);
}

std::span<uint32_t> DrawMasks::MaskOf(const Entry& entry, int draw) {
  const size_t size = MaskWords(vocab_size_);
  return std::span(words_).subspan(static_cast<size_t>(entry.first + draw) * size, size);
}

// Stops at a proposed token that its draw may not give or that ends the sequence: later draws would
// be meaningless. Also stops at an error after a proposed token; if the tokens before it are right,
// the sequence's own constraint meets it.
void DrawMasks::FillOne(const PlannedSequence& planned, Entry& entry) {
  TokenConstraint* constraint = planned.request->constraint.get();
  std::unique_ptr<TokenConstraint> guessed;  // a copy that goes through the proposed tokens
  const int first_position = planned.end() - planned.samples + 1;
  entry.num_draws = 0;
  for (int draw = 0; draw < planned.samples; ++draw) {
    if (draw > 0) {
      const int32_t token = planned.proposed[static_cast<size_t>(draw) - 1];
      if (!MaskHas(MaskOf(entry, draw - 1).data(), token) || Ends(*planned.request, token)) break;
      if (constraint != nullptr) {
        if (guessed == nullptr) guessed = constraint->Clone();
        constraint = guessed.get();
        if (!constraint->Accept(token).ok()) break;
      }
    }
    Status status = FillDraw(planned, constraint, first_position + draw, MaskOf(entry, draw));
    if (draw == 0) entry.error = status;
    if (!status.ok()) break;
    entry.num_draws = draw + 1;
  }
}

Status DrawMasks::FillDraw(const PlannedSequence& planned, TokenConstraint* constraint,
                           int position, std::span<uint32_t> mask) const {
  const Request& request = *planned.request;
  const auto after = [&] {
    const int num_outputs = position - static_cast<int>(request.prompt.size());
    return "after " + std::to_string(num_outputs) + " tokens ";
  };
  std::ranges::fill(mask, ~uint32_t{0});
  if (constraint != nullptr) DS_RETURN_IF_ERROR(constraint->Fill(mask));
  if (const int rest = vocab_size_ % kMaskWordBits; rest > 0)
    mask.back() &= (uint32_t{1} << rest) - 1;
  if (IsEmpty(mask)) return Status(StatusCode::kInternal, "the constraint allows no token");
  if (request.allowed_tokens != nullptr) {
    DS_CHECK(request.allowed_tokens->size() == mask.size(), "a mask is as long as the vocabulary");
    for (size_t i = 0; i < mask.size(); ++i) mask[i] &= (*request.allowed_tokens)[i];
    if (IsEmpty(mask)) {
      return InvalidArgument(after() + "none of the allowed ones may come next",
                             "allowed_token_ids");
    }
  }
  const auto ban = [&](int32_t token) {
    if (token >= 0 && token < vocab_size_)
      mask[static_cast<size_t>(token / kMaskWordBits)] &= ~(uint32_t{1} << token % kMaskWordBits);
  };
  for (int32_t token : planned.banned_tokens) ban(token);
  if (IsEmpty(mask)) {
    return InvalidArgument("min_tokens is " + std::to_string(request.sampling.min_tokens) +
                               ", but " + after() + "the answer may only end",
                           "min_tokens");
  }
  if (request.bad_words == nullptr) return Status();
  for (const std::vector<int32_t>& word : *request.bad_words) {
    if (!word.empty() && Precedes(planned, word, position)) ban(word.back());
  }
  if (!IsEmpty(mask)) return Status();
  return InvalidArgument(after() + "each one that may come next ends one of the bad words",
                         "bad_words");
}

}  // namespace diffserve
