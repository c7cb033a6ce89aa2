// DecodeGraphs: steps of pure decodes as CUDA graphs, one for each number of tokens. A size runs
// once as it is, which loads its kernels and chooses its products, and from then on as a graph.
// Thread safety: none; owned by the step runner.
#pragma once

#include <functional>
#include <map>
#include <optional>

#include "kernels/base/cuda/graph.h"

namespace diffserve::cuda {

class DecodeGraphs {
 public:
  // Memory that recorded work uses and that may be another at the next step.
  struct Memory {
    const std::byte* step = nullptr;
    const std::byte* pages = nullptr;
    const float* states = nullptr;  // behind the pages
    size_t cache_bytes = 0;
    friend bool operator==(const Memory&, const Memory&) = default;
  };

  // Queues queue_work() for `num_tokens` tokens, or the graph of it. Where it cannot be recorded
  // now (cuBLASLt must choose a product's kernel again and does not do so then, no memory for the
  // graph) it runs as it is. Graphs of other memory than this are forgotten.
  Status Run(int num_tokens, const Memory& memory, const Stream& stream,
             const std::function<Status()>& queue_work);

 private:
  struct Entry {
    std::optional<Graph> graph;
    int attempts_left = 2;  // to record it
  };
  std::map<int, Entry> entries_;  // by tokens; one has run once outside a graph
  Memory memory_;
};

}  // namespace diffserve::cuda
