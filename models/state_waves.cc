// SPDX-License-Identifier: Apache-2.0
#include "models/state_waves.h"

#include "kernels/process/check.h"

namespace diffserve {

void AddToWaves(const StatePiece& piece, const StateSlotUse& use, StateWaves& waves) {
  const int end = piece.first + piece.num_tokens;
  int begin = piece.first;
  int32_t from = begin > 0 ? use.to : piece.position == 0 ? kNoState : use.from;
  size_t wave = 0;
  const auto add = [&](int until, int32_t to) {
    if (waves.size() == wave) waves.emplace_back();
    waves[wave++].push_back({piece.first_row + begin - piece.first, until - begin, from, to});
    begin = until;
    from = to;
  };
  for (const StateSnapshot& snapshot : use.snapshots) {
    DS_CHECK(snapshot.num_tokens > 0, "a snapshot is behind a token");
    if (snapshot.num_tokens == begin) from = snapshot.slot;
    if (snapshot.num_tokens > begin && snapshot.num_tokens <= end)
      add(snapshot.num_tokens, snapshot.slot);
  }
  if (begin < end) add(end, use.to);
}

}  // namespace diffserve
