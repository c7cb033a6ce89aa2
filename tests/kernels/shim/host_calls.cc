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

#include "tests/kernels/shim/device_memory.h"
#include "tests/kernels/shim/queued_work.h"
#include "tests/kernels/shim/transfer_counts.h"

namespace shim = diffserve::shim;

namespace {

struct Operation {
  std::function<cudaError_t()> run;
  std::shared_ptr<const shim::KernelRun> kernel;  // of ours; `run` runs it whole
  bool is_kernel = false;                         // of ours or cuBLASLt's
};

}  // namespace

struct CUstream_st {
  int device = 0;
  std::deque<Operation> waiting;
  bool ends_with_kernel = false;             // of all operations so far
  std::unique_ptr<shim::EarlyGrid> started;  // of the next operation
  bool captures = false;
  std::vector<Operation> captured;
};
// Blocks its stream from the last record until all work queued before it has run.
struct CUevent_st {
  int device = 0;
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
thread_local int set_device = -1;       // by the thread
std::map<int, size_t> allocated_bytes;  // by device
using Regions = std::map<const void*, size_t>;
std::map<int, Regions> device_memory;  // by device and address
Regions pinned_memory;
std::vector<CUevent_st*> events;
std::vector<CUstream_st*> streams;

// The thread's device; -1: it has none.
int CurrentDevice() { return shim::simulated_device.count == 1 ? 0 : set_device; }

size_t FreeBytes(int device) {
  const size_t all = shim::simulated_device.memory_bytes;
  return all - std::min(all, allocated_bytes[device]);
}

bool IsWithin(const Regions& regions, const void* data, size_t size_bytes) {
  auto region = regions.upper_bound(data);
  if (region == regions.begin()) return false;
  --region;
  const size_t offset = static_cast<size_t>(static_cast<const char*>(data) -
                                            static_cast<const char*>(region->first));
  return offset + size_bytes <= region->second;
}

cudaError_t ResultOf(std::string failure) {
  shim::last_failure = std::move(failure);
  return shim::last_failure.empty() ? cudaSuccess : cudaErrorLaunchFailure;
}

// Runs a dependent kernel up to its waits, before the one before it.
cudaError_t Start(const shim::KernelRun& kernel, std::unique_ptr<shim::EarlyGrid>* started) {
  ++shim::early_kernels;
  *started = std::make_unique<shim::EarlyGrid>(kernel.shape, kernel.thread);
  shim::WatchEarlyAccesses();
  std::string failure = (*started)->RunToWaits();
  shim::EndEarlyAccesses();
  if (!failure.empty()) return ResultOf(std::move(failure));
  if (shim::HasWrittenEarly()) return ResultOf("a write before the wait for the kernel before");
  if (!shim::HasTouchedWrittenMemory()) return cudaSuccess;
  return ResultOf("a read before the wait of what an earlier kernel wrote");
}

// Runs an operation, of which *started is the beginning if it has one. The next one may begin
// before.
cudaError_t RunOne(const Operation& operation, const Operation* next,
                   std::unique_ptr<shim::EarlyGrid>* started) {
  const std::unique_ptr<shim::EarlyGrid> own = std::move(*started);
  const bool starts_next = operation.is_kernel && next != nullptr && next->kernel != nullptr &&
                           next->kernel->shape.is_dependent && shim::StartsEarly() &&
                           shim::simulated_device.runs_kernels;
  if (starts_next) {
    if (const cudaError_t error = Start(*next->kernel, started); error != cudaSuccess) return error;
  }
  if (own != nullptr) ++shim::kernels_run;
  const cudaError_t error = own == nullptr ? operation.run() : ResultOf(own->RunRest());
  if (!operation.is_kernel) shim::ForgetWrites();
  if (error != cudaSuccess || !starts_next || !shim::HasTouchedWrittenMemory()) return error;
  return ResultOf("a read before the wait of what the kernel before writes");
}

// Runs the oldest operation of the stream's queue.
cudaError_t RunNext(CUstream_st& stream) {
  const Operation operation = std::move(stream.waiting.front());
  stream.waiting.pop_front();
  const Operation* const next = stream.waiting.empty() ? nullptr : &stream.waiting.front();
  for (CUevent_st* event : events) {
    if (event->stream == &stream && event->operations_before > 0) --event->operations_before;
  }
  if (poison == cudaSuccess && injected != cudaSuccess && operations_until_injection-- == 0)
    poison = std::exchange(injected, cudaSuccess);
  if (poison == cudaSuccess) poison = RunOne(operation, next, &stream.started);
  if (poison != cudaSuccess) stream.started.reset();
  return poison;
}

cudaError_t RunAll(CUstream_st& stream) {
  while (!stream.waiting.empty()) RunNext(stream);
  return poison;
}

bool IsOnDevice(const void* data, size_t size_bytes) {
  return IsWithin(device_memory[CurrentDevice()], data, size_bytes);
}

// Whether the thread may use what was made on `device`.
cudaError_t CheckDevice(int device) {
  if (CurrentDevice() < 0) return cudaErrorDeviceUninitialized;
  return device == CurrentDevice() ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

cudaError_t Copy(void* to, const void* from, size_t size_bytes) {
  shim::WriteByCopy(to, [&] { std::memcpy(to, from, size_bytes); });
  return cudaSuccess;
}

cudaError_t EnqueueOperation(cudaStream_t stream, Operation operation) {
  const std::lock_guard lock(calls);
  if (stream == nullptr) return operation.run();
  if (const cudaError_t error = CheckDevice(stream->device); error != cudaSuccess) return error;
  if (poison != cudaSuccess) return poison;
  const bool follows_kernel = stream->captures
                                  ? !stream->captured.empty() && stream->captured.back().is_kernel
                                  : stream->ends_with_kernel;
  if (operation.kernel != nullptr && operation.kernel->shape.is_dependent && !follows_kernel)
    return cudaErrorInvalidValue;
  if (stream->captures) {
    stream->captured.push_back(std::move(operation));
  } else {
    stream->ends_with_kernel = operation.is_kernel;
    stream->waiting.push_back(std::move(operation));
  }
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

size_t AllocatedDeviceBytes(int device) { return allocated_bytes[device]; }

size_t QueuedOperations() {
  const std::lock_guard lock(calls);
  size_t count = 0;
  for (const CUstream_st* stream : streams) count += stream->waiting.size();
  return count;
}

cudaError_t Enqueue(cudaStream_t stream, std::function<cudaError_t()> operation, bool is_kernel) {
  return EnqueueOperation(stream, {std::move(operation), nullptr, is_kernel});
}

cudaError_t EnqueueKernel(cudaStream_t stream, KernelRun kernel) {
  if (kernel.shape.is_dependent && simulated_device.compute_capability_major < 9)
    return cudaErrorInvalidValue;
  const auto shared = std::make_shared<const KernelRun>(std::move(kernel));
  const auto run = [kernel = shared.get()] {
    ++kernels_run;
    if (!simulated_device.runs_kernels) return cudaSuccess;
    return ResultOf(RunGrid(kernel->shape, kernel->thread));
  };
  return EnqueueOperation(stream, {run, shared, /*is_kernel=*/true});
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
    case cudaErrorDeviceUninitialized:
      return "cudaErrorDeviceUninitialized";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
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
  *count = shim::simulated_device.count;
  return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = CurrentDevice();
  return *device < 0 ? cudaErrorDeviceUninitialized : cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= shim::simulated_device.count) return cudaErrorInvalidDevice;
  set_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal) {
  const shim::SimulatedDevice& device = shim::simulated_device;
  *properties = {};
  properties->uuid.bytes[15] = static_cast<char>(ordinal);
  std::snprintf(properties->name, sizeof(properties->name), "CPU shim");
  properties->major = device.compute_capability_major;
  properties->multiProcessorCount = device.multiprocessors;
  properties->l2CacheSize = device.l2_bytes;
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
  if (CurrentDevice() < 0) return cudaErrorDeviceUninitialized;
  *total_bytes = shim::simulated_device.memory_bytes;
  *free_bytes = FreeBytes(CurrentDevice());
  return poison;
}

// Not rounded up to the alignment, so that an access one byte beyond the end is detected.
cudaError_t cudaMalloc(void** data, size_t size_bytes) {
  const std::lock_guard lock(calls);
  const int device = CurrentDevice();
  if (device < 0) return cudaErrorDeviceUninitialized;
  if (poison != cudaSuccess) return poison;
  if (size_bytes > FreeBytes(device)) return cudaErrorMemoryAllocation;
  *data = shim::AllocatePages(size_bytes);
  if (*data == nullptr) return cudaErrorMemoryAllocation;
  device_memory[device][*data] = size_bytes;
  allocated_bytes[device] += size_bytes;
  return cudaSuccess;
}

cudaError_t cudaFree(void* data) {
  const std::lock_guard lock(calls);
  shim::releases_under_work += shim::QueuedOperations() > 0 ? 1 : 0;
  for (auto& [device, regions] : device_memory) {
    const auto found = regions.find(data);
    if (found == regions.end()) continue;
    allocated_bytes[device] -= found->second;
    regions.erase(found);
    shim::FreePages(data);
    break;
  }
  return poison;
}

cudaError_t cudaMallocHost(void** data, size_t size_bytes) {
  const std::lock_guard lock(calls);
  if (CurrentDevice() < 0) return cudaErrorDeviceUninitialized;
  if (posix_memalign(data, 256, size_bytes) != 0) return cudaErrorMemoryAllocation;
  std::memset(*data, 0xff, size_bytes);
  pinned_memory[*data] = size_bytes;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* data) {
  const std::lock_guard lock(calls);
  shim::releases_under_work += shim::QueuedOperations() > 0 ? 1 : 0;
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
  if ((from_device && !IsOnDevice(from, size_bytes)) ||
      (to_device && !IsOnDevice(to, size_bytes))) {
    return cudaErrorInvalidValue;
  }
  shim::transfer_counts.to_device += from_device ? 0 : 1;
  shim::transfer_counts.to_host += to_device ? 0 : 1;
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
      !IsOnDevice(from, bytes(from_stride)) || !IsOnDevice(to, bytes(to_stride))) {
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
  if (!IsOnDevice(to, size_bytes)) return cudaErrorInvalidValue;
  return shim::Enqueue(stream, [to, value, size_bytes] {
    shim::WriteByCopy(to, [&] { std::memset(to, value, size_bytes); });
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const std::lock_guard lock(calls);
  if (CurrentDevice() < 0) return cudaErrorDeviceUninitialized;
  *stream = streams.emplace_back(new CUstream_st());
  (*stream)->device = CurrentDevice();
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::lock_guard lock(calls);
  const cudaError_t error = RunAll(*stream);
  for (CUevent_st* event : events) {
    if (event->stream == stream) event->stream = nullptr;
  }
  std::erase(streams, stream);
  delete stream;
  return error;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const std::lock_guard lock(calls);
  if (stream == nullptr) return poison;
  const cudaError_t error = CheckDevice(stream->device);
  if (error != cudaSuccess) return error;
  const cudaError_t result = RunAll(*stream);
  shim::ForgetWrites();
  return result;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  const std::lock_guard lock(calls);
  if (CurrentDevice() < 0) return cudaErrorDeviceUninitialized;
  *event = events.emplace_back(new CUevent_st());
  (*event)->device = CurrentDevice();
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
  for (const int device : {event->device, stream->device}) {
    if (const cudaError_t error = CheckDevice(device); error != cudaSuccess) return error;
  }
  event->stream = stream;
  event->operations_before = stream->waiting.size();
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const std::lock_guard lock(calls);
  if (const cudaError_t error = CheckDevice(event->device); error != cudaSuccess) return error;
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
    std::unique_ptr<shim::EarlyGrid> started;
    for (size_t i = 0; i < operations->size(); ++i) {
      const Operation* const next = i + 1 < operations->size() ? &(*operations)[i + 1] : nullptr;
      const cudaError_t error = RunOne((*operations)[i], next, &started);
      if (error != cudaSuccess) return error;
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
