// Streams, events and device memory on the CPU, for programs that run the kernels' own source on tests/kernels/shim: device
// memory is heap memory that AddressSanitizer watches, and everything queued is done at once.
#include <cstdlib>
#include <cstring>

#include "kernels/base/cuda/error.cuh"
#include "kernels/base/cuda/memory.h"

namespace diffserve::cuda {

void Event::Destroy::operator()(CUevent_st*) const {}
void Stream::Destroy::operator()(CUstream_st*) const {}
Result<Stream> Stream::Create() { return Stream(nullptr); }
Status Stream::Synchronize() const { return Status(); }

void DeviceBuffer::Free::operator()(void* data) const { std::free(data); }

// Not rounded up to the alignment, so that one byte beyond the end is seen.
Result<DeviceBuffer> DeviceBuffer::Allocate(size_t size_bytes) {
  DeviceBuffer buffer;
  if (size_bytes == 0) return buffer;
  void* data = nullptr;
  DS_CHECK(posix_memalign(&data, 256, size_bytes) == 0, "no memory for a device buffer");
  std::memset(data, 0xff, size_bytes);  // NaNs
  buffer.data_.reset(data);
  buffer.size_bytes_ = size_bytes;
  return buffer;
}

Status CopyToDevice(std::span<const std::byte> from, const DeviceBuffer& to, size_t offset_bytes, const Stream&) {
  DS_CHECK(offset_bytes + from.size() <= to.size_bytes(), "a copy beyond the end of a device buffer");
  if (!from.empty()) std::memcpy(to.as<std::byte>() + offset_bytes, from.data(), from.size());
  return Status();
}

Status CopyToHost(const DeviceBuffer& from, size_t offset_bytes, std::span<std::byte> to, const Stream&) {
  DS_CHECK(offset_bytes + to.size() <= from.size_bytes(), "a copy from beyond the end of a device buffer");
  if (!to.empty()) std::memcpy(to.data(), from.as<std::byte>() + offset_bytes, to.size());
  return Status();
}

Status ToStatus(cudaError_t error, std::string_view call) {
  if (error == cudaSuccess) return Status();
  return Status(StatusCode::kInternal, std::string(call) + ": " + shim::last_failure);
}

}  // namespace diffserve::cuda
