// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "kernels/base/cuda/error.cuh"
#include "kernels/base/cuda/graph.h"

namespace diffserve::cuda {

void Graph::Destroy::operator()(CUgraphExec_st* graph) const {
  static_cast<void>(cudaGraphExecDestroy(graph));
}

Result<Graph> Graph::Capture(const Stream& stream, const std::function<Status()>& queue_work) {
  DS_RETURN_IF_ERROR(
      ToStatus(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal),
               "cudaStreamBeginCapture"));
  const Status queued = queue_work();
  cudaGraph_t graph = nullptr;
  const Status ended = ToStatus(cudaStreamEndCapture(stream.handle(), &graph),
                                "cudaStreamEndCapture");
  const std::unique_ptr<CUgraph_st, cudaError_t (*)(cudaGraph_t)> owner(graph, cudaGraphDestroy);
  DS_RETURN_IF_ERROR(queued);
  DS_RETURN_IF_ERROR(ended);
  cudaGraphExec_t exec = nullptr;
  DS_RETURN_IF_ERROR(ToStatus(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate"));
  return Graph(exec);
}

Status Graph::Launch(const Stream& stream) const {
  return ToStatus(cudaGraphLaunch(handle_.get(), stream.handle()), "cudaGraphLaunch");
}

}  // namespace diffserve::cuda
