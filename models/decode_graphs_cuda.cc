// SPDX-License-Identifier: Apache-2.0
#include "models/decode_graphs_cuda.h"

#include <string>
#include <utility>

#include "kernels/base/log.h"

namespace diffserve::cuda {

Status DecodeGraphs::Run(const Kind& kind, const Memory& memory, const Stream& stream,
                         const std::function<Status()>& queue_work) {
  if (memory != memory_) entries_.clear();
  memory_ = memory;
  const auto [found, is_new] = entries_.try_emplace(kind);
  Entry& entry = found->second;
  if (!is_new && !entry.graph && entry.attempts_left > 0) {
    if (const Status made = Assign(&entry.graph, Graph::Capture(stream, queue_work)); !made.ok()) {
      --entry.attempts_left;
      Log(LogLevel::kWarning, "graph_not_recorded",
          {{"rows", std::to_string(kind.num_tokens)}, {"reason", made.message()}});
    }
  }
  return entry.graph ? entry.graph->Launch(stream) : queue_work();
}

}  // namespace diffserve::cuda
