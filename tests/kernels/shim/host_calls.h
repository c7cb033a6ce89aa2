// SPDX-License-Identifier: Apache-2.0
// The part of CUDA's host API that this repository calls, on the CPU. Work queued on a stream runs
// only when the test waits for it, so that a missing wait shows. The null stream, which only tests
// of single kernels use, runs everything at once. Device memory has pages of its own, watched by
// AddressSanitizer and filled with NaNs when allocated. Used by one thread at a time.
// A kernel that is launched as dependent on the one before it (programmatic stream serialisation)
// starts before that one does anything. Up to its wait it may read only what no kernel has written
// since the host last waited for the stream, and what the one before does not write; it may write
// nothing. Memory is then out of reach, and the first access to each allocation is seen.
// With several devices a thread has none until it sets one, and uses only streams, events and
// memory of its own: stricter than CUDA, where it would start on device 0 unseen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "tests/kernels/shim/fiber_grid.h"

struct dim3 : diffserve::shim::Index3 {
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : Index3{x_, y_, z_} {}
};

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorStubLibrary = 34,
  cudaErrorInsufficientDriver = 35,
  cudaErrorDevicesUnavailable = 46,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorDeviceUninitialized = 201,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorECCUncorrectable = 214,
  cudaErrorUnsupportedPtxVersion = 222,
  cudaErrorNvlinkUncorrectable = 220,
  cudaErrorContained = 226,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchTimeout = 702,
  cudaErrorContextIsDestroyed = 709,
  cudaErrorAssert = 710,
  cudaErrorHardwareStackError = 714,
  cudaErrorIllegalInstruction = 715,
  cudaErrorMisalignedAddress = 716,
  cudaErrorInvalidAddressSpace = 717,
  cudaErrorInvalidPc = 718,
  cudaErrorLaunchFailure = 719,
  cudaErrorExternalDevice = 911,
  cudaErrorTensorMemoryLeak = 721,
  cudaErrorSystemNotReady = 802,
  cudaErrorSystemDriverMismatch = 803,
  cudaErrorCompatNotSupportedOnDevice = 804,
  cudaErrorMpsRpcFailure = 806,
  cudaErrorMpsServerNotReady = 807,
  cudaErrorMpsClientTerminated = 810,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorUnknown = 999,
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3
};
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventBlockingSync = 1;
inline constexpr unsigned cudaEventDisableTiming = 2;
inline constexpr int CUDART_VERSION = 13000;

using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;
using cudaGraphNode_t = struct CUgraphNode_st*;

struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  int major, minor, multiProcessorCount, l2CacheSize;
  size_t totalGlobalMem, sharedMemPerBlockOptin;
};
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
struct cudaLaunchAttributeValue {
  int programmaticStreamSerializationAllowed;
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};

namespace diffserve::shim {

// The devices that launches see, all alike.
struct SimulatedDevice {
  int count = 1;
  int multiprocessors = 4;
  int shared_bytes_per_block_max = 227 << 10;
  int compute_capability_major = 9;
  int l2_bytes = 1 << 20;
  size_t memory_bytes = size_t{1} << 30;
  bool runs_kernels = true;  // and products; false: only the host's part is measured
};
inline SimulatedDevice simulated_device;
inline int64_t multiply_adds = 0;     // of all products that have run
inline int64_t graphs_made = 0;       // by cudaGraphInstantiate
inline std::string last_failure;      // of a launch: the kernel's fault
inline int64_t prefetched_lines = 0;  // by PrefetchL2
inline int64_t kernels_run = 0;       // without those of cuBLASLt
inline int64_t early_kernels = 0;     // of those, that started before the one before them
inline int64_t bulk_copies = 0;

// As if the process had restarted: clears an error that poisoned the context.
void ResetContext();
// Makes the operation after `operations` more on a stream fail with `error`. The context is
// poisoned if the error does that.
void FailLater(int operations, cudaError_t error);
size_t AllocatedDeviceBytes(int device = 0);

// Runs `operation` on the null stream at once and returns its error; on others it is queued.
cudaError_t Enqueue(cudaStream_t stream, std::function<cudaError_t()> operation,
                    bool is_kernel = false);
// A kernel. Error: cudaErrorInvalidValue for a dependent one if the device has no such launches, or
// if a copy or nothing is before it.
struct KernelRun {
  GridShape shape;
  std::function<void()> thread;
};
cudaError_t EnqueueKernel(cudaStream_t stream, KernelRun kernel);

}  // namespace diffserve::shim

cudaError_t cudaGetLastError();
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes);
cudaError_t cudaMalloc(void** data, size_t size_bytes);
cudaError_t cudaFree(void* data);
cudaError_t cudaMallocHost(void** data, size_t size_bytes);
cudaError_t cudaFreeHost(void* data);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_stride, const void* from, size_t from_stride,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int value, size_t size_bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags);
// With `nodes` nullptr: only their number.
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* num_nodes);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel*, cudaFuncAttribute, int bytes) {
  return bytes <= diffserve::shim::simulated_device.shared_bytes_per_block_max
             ? cudaSuccess
             : cudaErrorInvalidValue;
}

// The arguments are copied now, as CUDA does.
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  namespace shim = diffserve::shim;
  if (config->dynamicSmemBytes >
      static_cast<size_t>(shim::simulated_device.shared_bytes_per_block_max)) {
    return cudaErrorInvalidValue;
  }
  shim::GridShape shape = {config->gridDim, config->blockDim, config->dynamicSmemBytes};
  for (unsigned i = 0; i < config->numAttrs; ++i)
    shape.is_dependent |= config->attrs[i].val.programmaticStreamSerializationAllowed != 0;
  return shim::EnqueueKernel(
      config->stream, {shape, [kernel, ... copies = Parameters(arguments)] { kernel(copies...); }});
}
