// SPDX-License-Identifier: Apache-2.0
// Graph: work of a stream, recorded once and launched as a whole many times. Everything that a
// launch depends on must be in memory whose addresses do not change.
//
// Thread safety: none.
#pragma once

#include <functional>
#include <memory>

#include "kernels/base/cuda/stream.h"

struct CUgraphExec_st;  // CUDA's own, opaque here

namespace diffserve::cuda {

class Graph {
 public:
  // Records what queue_work() queues on the stream; none of it runs. Errors: those of queue_work
  // and of CUDA.
  static Result<Graph> Capture(const Stream& stream, const std::function<Status()>& queue_work);
  Status Launch(const Stream& stream) const;

 private:
  struct Destroy {
    void operator()(CUgraphExec_st* graph) const;
  };
  explicit Graph(CUgraphExec_st* handle) : handle_(handle) {}
  std::unique_ptr<CUgraphExec_st, Destroy> handle_;
};

}  // namespace diffserve::cuda
