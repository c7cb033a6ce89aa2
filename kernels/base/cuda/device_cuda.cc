// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "kernels/base/cuda/architectures.h"
#include "kernels/base/cuda/device.h"
#include "kernels/base/cuda/error.cuh"

namespace diffserve::cuda {
namespace {

std::string VersionString(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// The kernel module's version, and the CUDA version that the driver supports.
std::string DriverVersion() {
  int version = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess) return "unknown";
  const std::string cuda = "CUDA " + VersionString(version);
  std::string module;
  std::ifstream("/sys/module/nvidia/version") >> module;
  return module.empty() ? cuda : module + " (" + cuda + ")";
}

// The driver counts as present if it can run what this build was compiled with.
Status CheckDriver() {
  int version = 0;
  DS_RETURN_IF_ERROR(ToStatus(cudaDriverGetVersion(&version), "cudaDriverGetVersion"));
  if (version == 0)
    return Status(StatusCode::kNotFound,
                  "no NVIDIA driver on this machine (libcuda.so.1 is not found)");
  // Any driver of the same major version suffices.
  constexpr int kNeeded = CUDART_VERSION / 1000 * 1000;
  if (version >= kNeeded) return Status();
  return Status(StatusCode::kNotFound, "the NVIDIA driver supports CUDA " + VersionString(version) +
                                           ", this build needs " + VersionString(kNeeded) +
                                           " or newer");
}

Result<int> CountDevices() {
  DS_RETURN_IF_ERROR(CheckDriver());
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    static_cast<void>(cudaGetLastError());
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    const std::string hint = visible == nullptr
                                 ? ""
                                 : std::string(" (CUDA_VISIBLE_DEVICES is \"") + visible + "\")";
    return Status(StatusCode::kDeviceLost, "the NVIDIA driver shows no device" + hint);
  }
  DS_RETURN_IF_ERROR(ToStatus(error, "cudaGetDeviceCount"));
  return count;
}

constexpr const char* kArchitectures = DIFFSERVE_CUDA_ARCHITECTURES;

// "GPU-8b1e3f52-0c41-...", in groups of 4, 2, 2, 2 and 6 bytes.
std::string UuidText(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    const bool begins_group = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    text += (begins_group ? "-" : "") + std::string(digits);
  }
  return text;
}

Result<DeviceInfo> InfoOf(int ordinal) {
  cudaDeviceProp properties = {};
  DS_RETURN_IF_ERROR(
      ToStatus(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties"));
  DeviceInfo info;
  info.ordinal = ordinal;
  info.name = properties.name;
  info.uuid = UuidText(properties.uuid);
  info.compute_capability = 10 * properties.major + properties.minor;
  info.driver = DriverVersion();
  info.num_sms = properties.multiProcessorCount;
  info.memory_bytes = properties.totalGlobalMem;
  info.l2_bytes = static_cast<size_t>(std::max(properties.l2CacheSize, 0));
  info.shared_memory_bytes_max = properties.sharedMemPerBlockOptin;
  info.needs_compilation = !HasMachineCode(kArchitectures, info.compute_capability);
  return info;
}

Status TooOld(const DeviceInfo& device) {
  return Status(StatusCode::kNotFound,
                device.name + " is sm_" + std::to_string(device.compute_capability) +
                    ", the kernels need sm_" + std::to_string(kComputeCapabilityMin) + " or newer");
}

Status Missing(int ordinal) {
  const Result<std::vector<DeviceInfo>> devices = ListDevices();
  if (!devices.ok()) return devices.status();
  std::string message = NameOfDevice(ordinal) + " does not exist; CUDA shows " +
                        std::to_string(devices->size()) +
                        (devices->size() == 1 ? " GPU: " : " GPUs: ");
  for (const DeviceInfo& device : *devices) {
    message += (device.ordinal == 0 ? "" : ", ") + NameOfDevice(device.ordinal) + " " + device.name;
  }
  return Status(StatusCode::kDeviceLost, std::move(message));
}

Status NoCode(const DeviceInfo& device) {
  return Status(StatusCode::kNotFound, device.name + " is sm_" +
                                           std::to_string(device.compute_capability) +
                                           ", this build has kernels for " + kArchitectures);
}

}  // namespace

bool IsCompiledIn() { return true; }
bool MayHaveGpu() { return true; }

Result<std::vector<DeviceInfo>> ListDevices() {
  const Result<int> count = CountDevices();
  if (!count.ok()) return count.status();
  std::vector<DeviceInfo> devices;
  for (int ordinal = 0; ordinal < *count; ++ordinal) {
    Result<DeviceInfo> info = InfoOf(ordinal);
    if (!info.ok()) return info.status();
    devices.push_back(*std::move(info));
  }
  return devices;
}

Status CheckDevice(const DeviceInfo& device) {
  if (device.compute_capability < kComputeCapabilityMin) return TooOld(device);
  const bool has_code = !device.needs_compilation ||
                        HasPortableCode(kArchitectures, device.compute_capability);
  return has_code ? Status() : NoCode(device);
}

Result<DeviceInfo> OpenDevice(int ordinal) {
  const Result<int> count = CountDevices();
  if (!count.ok()) return count.status();
  if (ordinal < 0 || ordinal >= *count) return Missing(ordinal);
  Result<DeviceInfo> info = InfoOf(ordinal);
  if (!info.ok()) return info.status();
  DS_RETURN_IF_ERROR(CheckDevice(*info));
  DS_RETURN_IF_ERROR(ToStatus(cudaSetDevice(ordinal), "cudaSetDevice"));
  return info;
}

Result<DeviceMemory> MemoryOfDevice() {
  DeviceMemory memory;
  DS_RETURN_IF_ERROR(
      ToStatus(cudaMemGetInfo(&memory.free_bytes, &memory.total_bytes), "cudaMemGetInfo"));
  return memory;
}

std::string NameOfDevice(int ordinal) { return "cuda:" + std::to_string(ordinal); }

std::string Describe(const DeviceInfo& device) {
  char text[64];
  std::snprintf(text, sizeof(text), " (sm_%d, %d SMs, %.1f GiB)", device.compute_capability,
                device.num_sms,
                static_cast<double>(device.memory_bytes) / static_cast<double>(1 << 30));
  return device.name + text;
}

}  // namespace diffserve::cuda
