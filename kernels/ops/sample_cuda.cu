#include <cuda_runtime.h>

#include "kernels/base/check.h"
#include "kernels/ops/sample_cuda.h"
#include "kernels/ops/sample_kernel.cuh"

namespace diffserve::cuda {
namespace {

constexpr int kSmallVocab = 2048;

template <int kThreads>
cudaError_t LaunchSample(const SampleRowsArgs& args, cudaStream_t stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(args.num_rows));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sizeof(SampleShared);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, SampleKernel<kThreads>, args);
}

}  // namespace

int SampleRows(const SampleRowsArgs& args, CUstream_st* stream) {
  DS_CHECK(args.vocab_size > 0 && args.vocab_size <= kSampledVocabMax, "rows of logits");
  if (args.num_rows == 0) return cudaSuccess;
  return args.vocab_size <= kSmallVocab ? LaunchSample<128>(args, stream)
                                        : LaunchSample<1024>(args, stream);
}

}  // namespace diffserve::cuda
