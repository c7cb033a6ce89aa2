// SPDX-License-Identifier: Apache-2.0
// FakeConstraint: a TokenConstraint without a grammar. The allowed tokens are a hash of a seed and
// the tokens accepted so far. It throws std::logic_error if its contract is violated. One
// in five of the tokens that it forces is wrong, as a wrong spelling would be.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "engine/contract/token_constraint.h"
#include "kernels/process/random_bits.h"

namespace diffserve::testing {

class FakeConstraint : public TokenConstraint {
 public:
  struct Options {
    uint64_t seed = 0;
    int vocab_size = 256;
    int one_of = 3;                  // about one token in `one_of` is allowed
    std::vector<int32_t> ends = {};  // EOS tokens: allowed at one position in four
    int ends_after = -1;             // after this many tokens only `ends` are allowed; -1: never
    int fill_fails_after = -1;       // Fill fails after this many tokens; -1: never
    bool forgets = false;            // the allowed tokens depend on the last token only
    int accept_fails_after = -1;     // Accept refuses an allowed token after this many; -1: never
    StatusCode failure = StatusCode::kInvalidArgument;  // of its work
  };
  explicit FakeConstraint(Options options) : options_(std::move(options)) {
    chain_.push_back(SplitMix64(options_.seed));
  }

  Status Fill(std::span<uint32_t> mask) override {
    Require(mask.size() == MaskWords(options_.vocab_size), "a mask is as long as the vocabulary");
    if (num_accepted() == options_.fill_fails_after)
      failure_ = Status(options_.failure, "the fake constraint has no more work", "fill");
    DS_RETURN_IF_ERROR(failure_);
    for (uint32_t& word : mask) word = 0;
    for (int32_t token = 0; token < options_.vocab_size; ++token) {
      if (MayCome(token)) mask[static_cast<size_t>(token / 32)] |= uint32_t{1} << token % 32;
    }
    return Status();
  }
  Status Accept(int32_t token) override {
    DS_RETURN_IF_ERROR(failure_);
    if (!MayCome(token)) return InvalidArgument("the token may not come here", "accept");
    if (num_accepted() == options_.accept_fails_after) {
      failure_ = Status(options_.failure, "the fake constraint has worked enough", "accept");
      return failure_;
    }
    const uint64_t before = options_.forgets ? options_.seed : chain_.back();
    chain_.push_back(SplitMix64(before * 31 + static_cast<uint32_t>(token)));
    return Status();
  }
  std::vector<int32_t> Forced(int limit) const override {
    FakeConstraint ahead = *this;
    std::vector<int32_t> forced;
    while (static_cast<int>(forced.size()) < limit) {
      std::vector<int32_t> allowed;
      for (int32_t token = 0; token < options_.vocab_size; ++token) {
        if (ahead.MayCome(token)) allowed.push_back(token);
      }
      if (allowed.size() != 1 || !ahead.Accept(allowed[0]).ok()) break;
      const bool is_wrong = SplitMix64(ahead.chain_.back()) % 5 == 0;
      forced.push_back((allowed[0] + (is_wrong ? 1 : 0)) % options_.vocab_size);
    }
    return forced;
  }
  std::unique_ptr<TokenConstraint> Clone() const override {
    return std::make_unique<FakeConstraint>(*this);
  }

  int num_accepted() const { return static_cast<int>(chain_.size()) - 1; }
  bool MayCome(int32_t token) const {
    const uint64_t state = chain_.back();
    const bool is_end = std::ranges::find(options_.ends, token) != options_.ends.end();
    const bool only_ends = num_accepted() == options_.ends_after;
    // At least one token is always allowed.
    const bool is_left = token ==
                         static_cast<int32_t>(state % static_cast<uint64_t>(options_.vocab_size));
    if (is_end) return only_ends || is_left || SplitMix64(state + 1) % 4 == 0;
    const bool is_chosen = SplitMix64(state ^ static_cast<uint32_t>(token)) %
                               static_cast<uint64_t>(options_.one_of) ==
                           0;
    return !only_ends && (is_chosen || is_left);
  }

 private:
  static void Require(bool condition, const char* what) {
    if (!condition) throw std::logic_error(what);
  }

  Options options_;
  Status failure_;               // of its work: it accepts nothing more
  std::vector<uint64_t> chain_;  // hashes before and after each accepted token
};

}  // namespace diffserve::testing
