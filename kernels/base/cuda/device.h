// SPDX-License-Identifier: Apache-2.0
// The CUDA devices of this machine, queried without ever aborting. Every build has these functions,
// also one without the CUDA backend (device_absent.cc) and one on a machine without a driver. No
// CUDA type appears here.
//
// Thread safety: all functions may be called from any thread. The current device belongs to the
// calling thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/status.h"

namespace diffserve::cuda {

// Slots per KV page on a GPU; no other size is supported.
constexpr int kPageSize = 64;
// Element types of KV pages on a GPU.
constexpr DType kPageTypes[] = {DType::kBFloat16, DType::kInt8, DType::kInt8KInt4V, DType::kInt4,
                                DType::kFp8E4M3};

// We ship no kernels for devices below this.
constexpr int kComputeCapabilityMin = 80;

inline constexpr int kFp8ComputeCapabilityMin = 89;  // of products with 8-bit floats
// From here on our code has bulk copies and dependent launches: machine code for Hopper, and the
// PTX of newer devices.
inline constexpr int kHopperComputeCapability = 90;

struct DeviceInfo {
  int ordinal = 0;             // among the devices that CUDA_VISIBLE_DEVICES leaves
  std::string name;            // "NVIDIA H200"
  std::string uuid;            // as nvidia-smi shows it: "GPU-8b1e3f52-..."
  int compute_capability = 0;  // 10 * major + minor: 90 is sm_90
  std::string driver;          // "580.65.06 (CUDA 13.0)", or only "CUDA 13.0"
  int num_sms = 0;
  size_t memory_bytes = 0;
  size_t l2_bytes = 0;
  size_t shared_memory_bytes_max = 0;  // maximum per thread block
  // The build has no machine code for it: the driver compiles the kernels when they are first used,
  // for minutes, and keeps them in its cache.
  bool needs_compilation = false;
};

struct DeviceMemory {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
};

// Whether this build contains the CUDA backend.
bool IsCompiledIn();
// Whether the machine has an NVIDIA driver, by its device file; true in a build with the backend,
// where OpenDevice tells more.
bool MayHaveGpu();

// The devices that CUDA shows this process, in its order, also those that OpenDevice refuses.
// Creates no context. Errors: as OpenDevice's of a machine without any.
Result<std::vector<DeviceInfo>> ListDevices();
// Whether our kernels run on it; the error is OpenDevice's.
Status CheckDevice(const DeviceInfo& device);

// Makes device `ordinal` the calling thread's and creates its context. From now on this thread's
// allocations, copies and launches are on that device. Errors: kUnimplemented if the backend is not
// compiled in. kNotFound with one line on what is missing: no driver; a driver too old, with both
// versions; none that our kernels have code for. kDeviceLost: no device, or not this one, with
// those that there are.
Result<DeviceInfo> OpenDevice(int ordinal);

// For the calling thread's device. REQUIRES: OpenDevice.
Result<DeviceMemory> MemoryOfDevice();

// "cuda:1", as --device names it.
std::string NameOfDevice(int ordinal);
// "NVIDIA H200 (sm_90, 132 SMs, 139.8 GiB)", for logs.
std::string Describe(const DeviceInfo& device);

}  // namespace diffserve::cuda
