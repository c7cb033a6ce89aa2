// SPDX-License-Identifier: Apache-2.0
#include "engine/proposer.h"

#include <algorithm>
#include <array>
#include <bit>

namespace diffserve {
namespace {

constexpr int kProbesMax = 32;  // then the first one is overwritten, which bounds the time of a
                                // lookup
constexpr int kMissesMax = 8;
constexpr size_t kSmallestTable = 256;

constexpr uint64_t Hash(uint64_t hash_behind, int32_t token) {
  return (hash_behind + static_cast<uint32_t>(token) + 1) * 0x9E3779B97F4A7C15u;
}

// Whether the `run` tokens before both ends are the same.
bool IsSameRun(const Proposer::Text& text, int run, int end, int other_end) {
  int same = 0;
  while (same < run && text[end - 1 - same] == text[other_end - 1 - same]) ++same;
  return same == run;
}

}  // namespace

std::vector<int32_t> Proposer::Propose(const Text& text, int limit) {
  Enter(text);
  std::vector<int32_t> proposed;
  if (pause_ > 0) {
    --pause_;
    return proposed;
  }
  const int size = text.size();
  const int longest = std::min(kLongest, size);
  std::array<uint64_t, kLongest + 1> hashes{};  // by run length
  for (int run = 1; run <= longest; ++run) hashes[run] = Hash(hashes[run - 1], text[size - run]);
  for (int run = longest; run >= std::min(kShortest + misses_, kLongest); --run) {
    const int found = EntryOf(text, run, size, hashes[run]);
    if (found == 0 || !IsSameRun(text, run, found, size)) continue;
    // A shorter run is weaker evidence, so fewer tokens are proposed.
    const int count = std::min({limit, length_, run < kLongest ? run : max_tokens_});
    if (count <= 0) break;
    proposed.reserve(static_cast<size_t>(count));
    // Beyond the end of the text, the proposal continues itself: a repetition goes on.
    for (int i = found; i < found + count; ++i)
      proposed.push_back(i < size ? text[i] : proposed[static_cast<size_t>(i - size)]);
    break;
  }
  return proposed;
}

void Proposer::Learn(int proposed, int accepted) {
  if (accepted == proposed) length_ = std::min(2 * length_, max_tokens_);
  if (accepted < proposed) length_ = std::clamp(accepted, 1, max_tokens_);
  misses_ = accepted > 0 ? misses_ / 2 : std::min(misses_ + 1, kMissesMax);
  if (accepted == 0) pause_ = (1 << misses_) - 1;
}

// The entry of the `run` tokens before `end`. If there is none, the entry to overwrite: it holds 0
// or another run's occurrence.
int32_t& Proposer::EntryOf(const Text& text, int run, int end, uint64_t hash) {
  Table& table = tables_[run - kShortest];
  const size_t mask = table.size() - 1, first = hash >> 32;
  for (size_t i = 0; i < kProbesMax; ++i) {
    int32_t& entry = table[(first + i) & mask];
    if (entry == 0 || IsSameRun(text, run, entry, end)) return entry;
  }
  return table[first & mask];
}

// Adds the runs of the new tokens, except those that end at the last token: nothing follows them
// yet.
void Proposer::Enter(const Text& text) {
  const int size = text.size();
  const size_t places = std::bit_ceil(std::max(kSmallestTable, 2 * static_cast<size_t>(size)));
  if (tables_[0].size() < places) {
    for (Table& table : tables_) table.assign(places, 0);
    entered_ = 0;
  }
  for (int end = std::max(entered_, kShortest); end < size; ++end) {
    uint64_t hash = 0;
    for (int run = 1; run <= std::min(kLongest, end); ++run) {
      hash = Hash(hash, text[end - run]);
      if (run >= kShortest) EntryOf(text, run, end, hash) = end;
    }
  }
  entered_ = size;
}

}  // namespace diffserve
