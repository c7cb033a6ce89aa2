// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "kernels/base/cuda/error.cuh"
#include "kernels/base/cuda/stream.h"

namespace diffserve::cuda {

// Destructors ignore errors: the call that met the error first has already reported it.
void Event::Destroy::operator()(CUevent_st* event) const {
  static_cast<void>(cudaEventDestroy(event));
}
void Stream::Destroy::operator()(CUstream_st* stream) const {
  static_cast<void>(cudaStreamDestroy(stream));
}

Result<Event> Event::Create(bool timed) {
  cudaEvent_t event = nullptr;
  const unsigned flags = cudaEventBlockingSync | (timed ? 0u : cudaEventDisableTiming);
  DS_RETURN_IF_ERROR(ToStatus(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags"));
  return Event(event);
}

Status Event::Wait() const {
  return ToStatus(cudaEventSynchronize(handle()), "cudaEventSynchronize");
}

Result<Stream> Stream::Create() {
  int device = 0;
  DS_RETURN_IF_ERROR(ToStatus(cudaGetDevice(&device), "cudaGetDevice"));
  cudaStream_t stream = nullptr;
  DS_RETURN_IF_ERROR(ToStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                              "cudaStreamCreateWithFlags"));
  return Stream(stream, device);
}

Status Stream::UseDevice() const { return ToStatus(cudaSetDevice(device_), "cudaSetDevice"); }

Status Stream::Record(const Event& event) const {
  return ToStatus(cudaEventRecord(event.handle(), handle()), "cudaEventRecord");
}

Status Stream::Synchronize() const {
  return ToStatus(cudaStreamSynchronize(handle()), "cudaStreamSynchronize");
}

Result<float> MillisecondsBetween(const Event& begin, const Event& end) {
  float milliseconds = 0;
  DS_RETURN_IF_ERROR(ToStatus(cudaEventElapsedTime(&milliseconds, begin.handle(), end.handle()),
                              "cudaEventElapsedTime"));
  return milliseconds;
}

}  // namespace diffserve::cuda
