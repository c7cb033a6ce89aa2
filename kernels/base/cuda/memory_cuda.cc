// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "kernels/base/cuda/device.h"
#include "kernels/base/cuda/error.cuh"
#include "kernels/base/cuda/memory.h"
#include "kernels/base/cuda/stream.h"

namespace diffserve::cuda {
namespace {

bool IsWithin(size_t offset, size_t count, size_t size) {
  return offset <= size && count <= size - offset;
}

// cudaMalloc's own message has no numbers.
Status WithSizes(Status status, size_t asked_bytes) {
  if (status.code() != StatusCode::kResourceExhausted) return status;
  std::string message = status.message() + "; asked for " + std::to_string(asked_bytes) + " bytes";
  const Result<DeviceMemory> memory = MemoryOfDevice();
  if (memory.ok()) {
    message += ", free on the device: " + std::to_string(memory->free_bytes) + " of " +
               std::to_string(memory->total_bytes);
  }
  return Status(status.code(), std::move(message));
}

// allocate(&data) performs the CUDA call named `call`.
template <typename Allocation>
Result<void*> Take(const Allocation& allocate, const char* call, size_t size_bytes) {
  void* data = nullptr;
  if (size_bytes > 0) DS_RETURN_IF_ERROR(WithSizes(ToStatus(allocate(&data), call), size_bytes));
  return data;
}

}  // namespace

void FreeDeviceMemory::operator()(void* data) const { static_cast<void>(cudaFree(data)); }
void FreePinnedMemory::operator()(void* data) const { static_cast<void>(cudaFreeHost(data)); }

Result<DeviceBuffer> DeviceBuffer::Allocate(size_t size_bytes) {
  const Result<void*> data = Take([&](void** to) { return cudaMalloc(to, size_bytes); },
                                  "cudaMalloc", size_bytes);
  if (!data.ok()) return data.status();
  return DeviceBuffer(*data, size_bytes);
}

Result<PinnedBuffer> PinnedBuffer::Allocate(size_t size_bytes) {
  const Result<void*> data = Take([&](void** to) { return cudaMallocHost(to, size_bytes); },
                                  "cudaMallocHost", size_bytes);
  if (!data.ok()) return data.status();
  return PinnedBuffer(*data, size_bytes);
}

Status CopyToDevice(std::span<const std::byte> from, const DeviceBuffer& to, size_t offset_bytes,
                    const Stream& stream) {
  DS_CHECK(IsWithin(offset_bytes, from.size(), to.size_bytes()),
           "a copy beyond the end of a device buffer");
  if (from.empty()) return Status();
  return ToStatus(cudaMemcpyAsync(to.as<std::byte>() + offset_bytes, from.data(), from.size(),
                                  cudaMemcpyHostToDevice, stream.handle()),
                  "cudaMemcpyAsync to the device");
}

Status CopyToHost(const DeviceBuffer& from, size_t offset_bytes, std::span<std::byte> to,
                  const Stream& stream) {
  DS_CHECK(IsWithin(offset_bytes, to.size(), from.size_bytes()),
           "a copy from beyond the end of a device buffer");
  return CopyToHost(from.as<std::byte>() + offset_bytes, to, stream);
}

Status CopyToHost(const void* from, std::span<std::byte> to, const Stream& stream) {
  if (to.empty()) return Status();
  return ToStatus(
      cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, stream.handle()),
      "cudaMemcpyAsync to the host");
}

Status CopyToPinned(const std::byte* from, std::byte* to, size_t size_bytes, const Stream& stream) {
  return ToStatus(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDeviceToHost, stream.handle()),
                  "cudaMemcpyAsync to the host");
}

Status CopyFromPinned(const std::byte* from, std::byte* to, size_t size_bytes,
                      const Stream& stream) {
  return ToStatus(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyHostToDevice, stream.handle()),
                  "cudaMemcpyAsync to the device");
}

Status CopyOnDevice(const std::byte* from, std::byte* to, size_t size_bytes, const Stream& stream) {
  return ToStatus(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDeviceToDevice, stream.handle()),
                  "cudaMemcpyAsync on the device");
}

Status CopyRowsOnDevice(const RowCopy& copy, const Stream& stream) {
  if (copy.num_rows == 0) return Status();
  return ToStatus(
      cudaMemcpy2DAsync(copy.to, copy.to_stride, copy.from, copy.from_stride, copy.row_bytes,
                        copy.num_rows, cudaMemcpyDeviceToDevice, stream.handle()),
      "cudaMemcpy2DAsync on the device");
}

Status FillBytes(const DeviceBuffer& buffer, std::byte value, const Stream& stream) {
  if (buffer.size_bytes() == 0) return Status();
  return ToStatus(cudaMemsetAsync(buffer.data(), std::to_integer<int>(value), buffer.size_bytes(),
                                  stream.handle()),
                  "cudaMemsetAsync");
}

}  // namespace diffserve::cuda
