// The CUDA devices of this machine, asked for without ever aborting: every build has these
// functions, also one without the CUDA backend (device_absent.cc) and one that runs where there is
// no driver. No CUDA type shows here.
// Thread safety: all functions may be called from any thread. The current device belongs to the
// calling thread.
#pragma once

#include <cstddef>
#include <string>

#include "kernels/base/dtype.h"
#include "kernels/base/status.h"

namespace diffserve::cuda {

// Slots of a KV page on a GPU; the only number.
constexpr int kPageSize = 64;
// What a KV page may be of there.
constexpr DType kPageTypes[] = {DType::kBFloat16, DType::kInt8, DType::kInt8KInt4V, DType::kInt4,
                                DType::kFp8E4M3};

// Below this no kernel of ours has code.
constexpr int kComputeCapabilityMin = 80;

struct DeviceInfo {
  int ordinal = 0;             // among the devices that CUDA_VISIBLE_DEVICES leaves
  std::string name;            // "NVIDIA H200"
  int compute_capability = 0;  // 10 * major + minor: 90 is sm_90
  int num_sms = 0;
  size_t memory_bytes = 0;
  size_t l2_bytes = 0;
  size_t shared_memory_bytes_max = 0;  // what one thread block may ask for
};

struct DeviceMemory {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
};

// Whether this build holds the CUDA backend.
bool IsCompiledIn();

// Makes device `ordinal` the calling thread's and creates its context: from now on what this thread
// allocates, copies and launches is on that device. Errors: kUnimplemented if the backend is not
// compiled in; kNotFound with what is missing in one line (no driver; a driver too old, with both
// versions; no device; none that our kernels have code for); kInvalidArgument if there is no such
// device.
Result<DeviceInfo> OpenDevice(int ordinal);

// Of the calling thread's device. REQUIRES: OpenDevice.
Result<DeviceMemory> MemoryOfDevice();

// "NVIDIA H200 (sm_90, 132 SMs, 139.8 GiB)", for logs.
std::string Describe(const DeviceInfo& device);

}  // namespace diffserve::cuda
