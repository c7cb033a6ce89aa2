// SPDX-License-Identifier: Apache-2.0
#include "models/decode_graphs_cuda.h"

#include <string>
#include <utility>

#include "kernels/process/log.h"

namespace diffserve::cuda {

Status DecodeGraphs::Run(const Kind& kind, const Memory& memory, const Stream& stream,
                         const std::function<Status()>& queue_work) {
  if (memory != memory_) {
    for (auto& [other, entry] : entries_) entry = Entry();
  }
  memory_ = memory;
  const auto [found, is_new] = entries_.try_emplace(kind);
  Entry& entry = found->second;
  if (!is_new) Record(kind, stream, queue_work, &entry);
  if (entry.graph) return entry.graph->Launch(stream);
  DS_RETURN_IF_ERROR(queue_work());
  if (is_new) Record(kind, stream, queue_work, &entry);
  return Status();
}

void DecodeGraphs::Record(const Kind& kind, const Stream& stream,
                          const std::function<Status()>& queue_work, Entry* entry) const {
  if (entry->graph || entry->attempts_left == 0) return;
  const Status made = Assign(&entry->graph, Graph::Capture(stream, queue_work));
  if (made.ok()) return;
  --entry->attempts_left;
  Log(LogLevel::kWarning, "graph_not_recorded",
      {{"rows", std::to_string(kind.num_tokens)}, {"reason", made.message()}});
}

}  // namespace diffserve::cuda
