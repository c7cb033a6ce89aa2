// SPDX-License-Identifier: Apache-2.0
#include "models/diagnostics/batch_observer.h"

#include <algorithm>

#include "kernels/process/check.h"

namespace diffserve {

void BatchObserver::Add(SequenceObserver& observer, size_t sequence, const SequenceTokens& tokens,
                        int num_tokens) {
  const int end = tokens.position + tokens.num_tokens;
  if (!observer.Wants(tokens.position, end, num_tokens)) return;
  const int first = observer.FirstState(tokens.position, end, num_tokens);
  DS_CHECK(first == end || rows_.empty() || rows_.back() < tokens.first_row,
           "one observer of a sequence wants its states");
  for (int position = first; position < end; ++position)
    rows_.push_back(tokens.first_row + position - tokens.position);
  seen_.push_back({&observer, sequence, first, end, num_tokens});
}

bool BatchObserver::WantsAttention(int layer, size_t sequence) const {
  return std::ranges::any_of(seen_, [&](const Seen& seen) {
    return seen.sequence == sequence && seen.observer->WantsAttention(layer);
  });
}

void BatchObserver::OnAttention(int layer, const DiffAttentionArgs<float>& attention) {
  for (const Seen& seen : seen_) {
    const SequenceTokens& tokens = attention.batch[seen.sequence];
    if (tokens.num_tokens > 0 && seen.observer->WantsAttention(layer))
      seen.observer->OnAttention(layer, attention, tokens);
  }
}

void BatchObserver::OnStates(std::span<const float> states) {
  const size_t width = states.size() / rows_.size();
  for (const Seen& seen : seen_) {
    const auto count = static_cast<size_t>(seen.end - seen.first_state) * width;
    if (count == 0) continue;
    seen.observer->OnStates(seen.first_state, seen.num_tokens, states.first(count));
    states = states.subspan(count);
  }
}

void BatchObserver::OnEnd() {
  for (const Seen& seen : seen_) seen.observer->OnEnd(seen.end);
}

}  // namespace diffserve
