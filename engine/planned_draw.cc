// SPDX-License-Identifier: Apache-2.0
#include "engine/planned_draw.h"

namespace diffserve {

SampleTask PackPlannedDraw(const PlannedSequence& planned, std::span<const int32_t> proposed,
                           int vocab_size, std::vector<LogitAdjustment>* adjustments) {
  const Request& request = *planned.request;
  std::span<const int32_t> outputs = planned.outputs;
  std::vector<int32_t> with_proposed;
  if (!proposed.empty() && request.sampling.uses_penalties()) {
    with_proposed.assign(outputs.begin(), outputs.end());
    with_proposed.insert(with_proposed.end(), proposed.begin(), proposed.end());
    outputs = with_proposed;
  }
  return PackDraw({.params = &request.sampling,
                   .vocab_size = vocab_size,
                   .sequence = request.sequence,
                   .position = request.prompt.size() + planned.outputs.size() + proposed.size(),
                   .prompt_tokens = request.prompt,
                   .output_tokens = outputs,
                   .banned_tokens = planned.banned_tokens},
                  adjustments);
}

}  // namespace diffserve
