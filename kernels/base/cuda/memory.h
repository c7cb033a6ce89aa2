// SPDX-License-Identifier: Apache-2.0
// DeviceBuffer: one allocation on the calling thread's device, made at start-up. PinnedBuffer: host
// memory that the device can copy from and to while both run. Both own their memory; a step
// allocates nothing. No CUDA type appears here. Copies check their ranges with DS_CHECK and are
// queued: the host side must live until the stream has executed them.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "kernels/base/cuda/stream.h"

namespace diffserve::cuda {

struct FreeDeviceMemory {
  void operator()(void* data) const;
};
struct FreePinnedMemory {
  void operator()(void* data) const;
};

// One allocation and its size; data() is nullptr for 0 bytes.
template <typename Free>
class OwnedMemory {
 public:
  OwnedMemory() = default;

  void* data() const { return data_.get(); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_.get());
  }
  size_t size_bytes() const { return size_bytes_; }

 protected:
  OwnedMemory(void* data, size_t size_bytes) : data_(data), size_bytes_(size_bytes) {}

 private:
  std::unique_ptr<void, Free> data_;
  size_t size_bytes_ = 0;
};

class DeviceBuffer : public OwnedMemory<FreeDeviceMemory> {  // data() is a device address
 public:
  DeviceBuffer() = default;
  // 256-byte aligned, of arbitrary content. Error: kResourceExhausted, with the bytes requested and
  // free.
  static Result<DeviceBuffer> Allocate(size_t size_bytes);

 private:
  using OwnedMemory::OwnedMemory;
};

class PinnedBuffer : public OwnedMemory<FreePinnedMemory> {
 public:
  PinnedBuffer() = default;
  // The content is arbitrary. Error: kResourceExhausted, with the bytes requested.
  static Result<PinnedBuffer> Allocate(size_t size_bytes);

  std::span<std::byte> bytes() const { return {as<std::byte>(), size_bytes()}; }

 private:
  using OwnedMemory::OwnedMemory;
};

// to[offset_bytes, + from.size()) = from. Some devices read memory that is not pinned by
// themselves: it too must live, unchanged, until the stream has executed the copy.
Status CopyToDevice(std::span<const std::byte> from, const DeviceBuffer& to, size_t offset_bytes,
                    const Stream& stream);
// to = from[offset_bytes, + to.size()).
Status CopyToHost(const DeviceBuffer& from, size_t offset_bytes, std::span<std::byte> to,
                  const Stream& stream);
// to = from[0, to.size()), device memory.
Status CopyToHost(const void* from, std::span<std::byte> to, const Stream& stream);
// Device memory to pinned host memory, and back.
Status CopyToPinned(const std::byte* from, std::byte* to, size_t size_bytes, const Stream& stream);
Status CopyFromPinned(const std::byte* from, std::byte* to, size_t size_bytes,
                      const Stream& stream);
// Both are device memory that does not overlap.
Status CopyOnDevice(const std::byte* from, std::byte* to, size_t size_bytes, const Stream& stream);
// Rows that are `..._stride` bytes apart, in device memory that does not overlap.
struct RowCopy {
  const void* from = nullptr;
  size_t from_stride = 0;
  void* to = nullptr;
  size_t to_stride = 0;
  size_t row_bytes = 0;
  size_t num_rows = 0;
};
Status CopyRowsOnDevice(const RowCopy& copy, const Stream& stream);
// Every byte of the buffer becomes `value`.
Status FillBytes(const DeviceBuffer& buffer, std::byte value, const Stream& stream);

}  // namespace diffserve::cuda
