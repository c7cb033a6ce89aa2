// SPDX-License-Identifier: Apache-2.0
// DecodeGraphs: steps of only decodes as CUDA graphs, one per Kind: number of tokens and tiling of
// attention. The first step of a kind runs without a graph, which loads its kernels and chooses its
// products. While it runs, the graph for later ones is recorded.
//
// Thread safety: none; owned by the step runner.
#pragma once

#include <compare>
#include <functional>
#include <map>
#include <optional>

#include "kernels/base/cuda/graph.h"

namespace diffserve::cuda {

class DecodeGraphs {
 public:
  // Memory that recorded work uses and that may change until the next step.
  struct Memory {
    const std::byte* step = nullptr;
    const std::byte* pages = nullptr;
    const float* states = nullptr;  // after the pages
    size_t cache_bytes = 0;
    friend bool operator==(const Memory&, const Memory&) = default;
  };

  // What decides which kernels queue_work() queues and how large their grids are.
  struct Kind {
    int num_tokens = 0;
    int rows_per_tile = 1;  // of decode attention: more if sequences have several tokens
    friend auto operator<=>(const Kind&, const Kind&) = default;
  };

  // Queues queue_work() for a step of this kind, or its graph. Runs without a graph if it cannot be
  // recorded now: cuBLASLt must choose a product's kernel again and does not do so while recording,
  // or there is no memory for the graph. Graphs of other memory than this are dropped, and recorded
  // again when their kind comes.
  Status Run(const Kind& kind, const Memory& memory, const Stream& stream,
             const std::function<Status()>& queue_work);

 private:
  struct Entry {
    std::optional<Graph> graph;
    int attempts_left = 2;  // attempts to record it
  };
  void Record(const Kind& kind, const Stream& stream, const std::function<Status()>& queue_work,
              Entry* entry) const;

  std::map<Kind, Entry> entries_;  // an entry has run once outside a graph
  Memory memory_;
};

}  // namespace diffserve::cuda
