// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/shim/host_calls.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace shim = diffserve::shim;

using Operation = std::function<cudaError_t()>;

struct CUstream_st {
  std::deque<Operation> waiting;
  bool captures = false;
  std::vector<Operation> captured;
};
// Blocks its stream from the last record until all work queued before it has run.
struct CUevent_st {
  CUstream_st* stream = nullptr;
  size_t operations_before = 0;  // in the stream's queue
};
struct CUgraph_st {
  std::vector<Operation> operations;
};
struct CUgraphExec_st {
  std::shared_ptr<std::vector<Operation>> operations;
};

namespace {

std::recursive_mutex calls;          // one call at a time, and one operation
cudaError_t poison = cudaSuccess;    // the context is lost
cudaError_t injected = cudaSuccess;  // happens after operations_until_injection operations
int operations_until_injection = 0;
size_t allocated_bytes = 0;
std::map<const void*, size_t> device_memory;  // by address
std::map<const void*, size_t> pinned_memory;
std::vector<CUevent_st*> events;

bool IsWithin(const std::map<const void*, size_t>& regions, const void* data, size_t size_bytes) {
  auto region = regions.upper_bound(data);
  if (region == regions.begin()) return false;
  --region;
  const size_t offset = static_cast<size_t>(static_cast<const char*>(data) -
                                            static_cast<const char*>(region->first));
  return offset + size_bytes <= region->second;
}

// Runs the oldest operation of the stream's queue.
cudaError_t RunNext(CUstream_st& stream) {
  const Operation operation = std::move(stream.waiting.front());
  stream.waiting.pop_front();
  for (CUevent_st* event : events) {
    if (event->stream == &stream && event->operations_before > 0) --event->operations_before;
  }
  if (poison != cudaSuccess) return poison;
  if (injected != cudaSuccess && operations_until_injection-- == 0) {
    poison = std::exchange(injected, cudaSuccess);
    return poison;
  }
  const cudaError_t error = operation();
  if (error != cudaSuccess) poison = error;
  return error;
}

cudaError_t RunAll(CUstream_st& stream) {
  while (!stream.waiting.empty()) RunNext(stream);
  return poison;
}

cudaError_t Copy(void* to, const void* from, size_t size_bytes) {
  std::memcpy(to, from, size_bytes);
  return cudaSuccess;
}

}  // namespace

namespace diffserve::shim {

void ResetContext() {
  poison = injected = cudaSuccess;
  last_failure.clear();
}

void FailLater(int operations, cudaError_t error) {
  operations_until_injection = operations;
  injected = error;
}

size_t AllocatedDeviceBytes() { return allocated_bytes; }

cudaError_t Enqueue(cudaStream_t stream, Operation operation) {
  const std::lock_guard lock(calls);
  if (stream == nullptr) return operation();
  if (poison != cudaSuccess) return poison;
  if (stream->captures) {
    stream->captured.push_back(std::move(operation));
  } else {
    stream->waiting.push_back(std::move(operation));
  }
  return cudaSuccess;
}

}  // namespace diffserve::shim

cudaError_t cudaGetLastError() { return poison; }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    default:
      return "another cudaError";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  return shim::last_failure.empty() ? cudaGetErrorName(error) : shim::last_failure.c_str();
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidValue; }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  const shim::SimulatedDevice& device = shim::simulated_device;
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "CPU shim");
  properties->major = device.compute_capability_major;
  properties->multiProcessorCount = device.multiprocessors;
  properties->totalGlobalMem = device.memory_bytes;
  properties->sharedMemPerBlockOptin = static_cast<size_t>(device.shared_bytes_per_block_max);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  const shim::SimulatedDevice& device = shim::simulated_device;
  *value = attribute == cudaDevAttrMultiProcessorCount      ? device.multiprocessors
           : attribute == cudaDevAttrComputeCapabilityMajor ? device.compute_capability_major
                                                            : device.shared_bytes_per_block_max;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  const std::lock_guard lock(calls);
  *total_bytes = shim::simulated_device.memory_bytes;
  *free_bytes = *total_bytes - std::min(*total_bytes, allocated_bytes);
  return poison;
}

// Not rounded up to the alignment, so that an access one byte beyond the end is detected.
cudaError_t cudaMalloc(void** data, size_t size_bytes) {
  const std::lock_guard lock(calls);
  if (poison != cudaSuccess) return poison;
  if (size_bytes > shim::simulated_device.memory_bytes -
                       std::min(shim::simulated_device.memory_bytes, allocated_bytes) ||
      posix_memalign(data, 256, size_bytes) != 0) {
    return cudaErrorMemoryAllocation;
  }
  std::memset(*data, 0xff, size_bytes);
  device_memory[*data] = size_bytes;
  allocated_bytes += size_bytes;
  return cudaSuccess;
}

cudaError_t cudaFree(void* data) {
  const std::lock_guard lock(calls);
  if (const auto found = device_memory.find(data); found != device_memory.end()) {
    allocated_bytes -= found->second;
    device_memory.erase(found);
    std::free(data);
  }
  return poison;
}

cudaError_t cudaMallocHost(void** data, size_t size_bytes) {
  const std::lock_guard lock(calls);
  if (posix_memalign(data, 256, size_bytes) != 0) return cudaErrorMemoryAllocation;
  std::memset(*data, 0xff, size_bytes);
  pinned_memory[*data] = size_bytes;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* data) {
  const std::lock_guard lock(calls);
  pinned_memory.erase(data);
  std::free(data);
  return cudaSuccess;
}

// Unpinned host memory is read when the copy runs, as by a device that reads it by itself, and
// written only after the stream has been waited for.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const std::lock_guard lock(calls);
  const bool from_device = kind != cudaMemcpyHostToDevice,
             to_device = kind != cudaMemcpyDeviceToHost;
  if ((from_device && !IsWithin(device_memory, from, size_bytes)) ||
      (to_device && !IsWithin(device_memory, to, size_bytes))) {
    return cudaErrorInvalidValue;
  }
  const bool is_unpinned = !from_device && !IsWithin(pinned_memory, from, size_bytes);
  if (is_unpinned && stream != nullptr && stream->captures)
    return cudaErrorStreamCaptureUnsupported;
  const cudaError_t error = shim::Enqueue(
      stream, [to, from, size_bytes] { return Copy(to, from, size_bytes); });
  if (error != cudaSuccess || to_device || IsWithin(pinned_memory, to, size_bytes)) return error;
  if (stream != nullptr && stream->captures) return cudaErrorStreamCaptureUnsupported;
  return cudaStreamSynchronize(stream);
}

// Copies within the device.
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_stride, const void* from, size_t from_stride,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  const std::lock_guard lock(calls);
  const auto bytes = [&](size_t stride) { return (height - 1) * stride + width; };
  if (kind != cudaMemcpyDeviceToDevice || width > to_stride || width > from_stride || height == 0 ||
      !IsWithin(device_memory, from, bytes(from_stride)) ||
      !IsWithin(device_memory, to, bytes(to_stride))) {
    return cudaErrorInvalidValue;
  }
  return shim::Enqueue(stream, [=] {
    for (size_t row = 0; row < height; ++row) {
      Copy(static_cast<char*>(to) + row * to_stride,
           static_cast<const char*>(from) + row * from_stride, width);
    }
    return cudaSuccess;
  });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t size_bytes, cudaStream_t stream) {
  const std::lock_guard lock(calls);
  if (!IsWithin(device_memory, to, size_bytes)) return cudaErrorInvalidValue;
  return shim::Enqueue(stream, [to, value, size_bytes] {
    std::memset(to, value, size_bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::lock_guard lock(calls);
  const cudaError_t error = RunAll(*stream);
  for (CUevent_st* event : events) {
    if (event->stream == stream) event->stream = nullptr;
  }
  delete stream;
  return error;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const std::lock_guard lock(calls);
  return stream == nullptr ? poison : RunAll(*stream);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  const std::lock_guard lock(calls);
  *event = events.emplace_back(new CUevent_st);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::lock_guard lock(calls);
  std::erase(events, event);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard lock(calls);
  if (poison != cudaSuccess) return poison;
  if (stream->captures) return cudaErrorStreamCaptureUnsupported;
  *event = {stream, stream->waiting.size()};
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const std::lock_guard lock(calls);
  while (event->stream != nullptr && event->operations_before > 0) RunNext(*event->stream);
  return poison;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1;  // no clock here
  return poison;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const std::lock_guard lock(calls);
  if (poison != cudaSuccess) return poison;
  if (stream->captures) return cudaErrorStreamCaptureUnsupported;
  stream->captures = true;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(calls);
  if (!stream->captures) return cudaErrorStreamCaptureUnsupported;
  stream->captures = false;
  *graph = new CUgraph_st{std::exchange(stream->captured, {})};
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  ++shim::graphs_made;
  *exec = new CUgraphExec_st{std::make_shared<std::vector<Operation>>(graph->operations)};
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* num_nodes) {
  if (nodes != nullptr) return cudaErrorInvalidValue;
  *num_nodes = graph->operations.size();
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return shim::Enqueue(stream, [operations = exec->operations] {
    for (const Operation& operation : *operations) {
      if (const cudaError_t error = operation(); error != cudaSuccess) return error;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
