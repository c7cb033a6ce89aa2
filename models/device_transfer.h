// SPDX-License-Identifier: Apache-2.0
// DeviceTransfer: copies between a device's KV cache and host memory, beside the steps.
//
// Thread safety: MarkSteps is called by the thread that launches steps; all else by any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "kernels/base/status.h"

namespace diffserve {

struct MemoryCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  size_t size_bytes = 0;
};

class DeviceTransfer {
 public:
  virtual ~DeviceTransfer() = default;

  // Host memory that the device copies from and to directly. Error: kResourceExhausted.
  virtual Result<std::shared_ptr<std::byte>> AllocateHost(size_t size_bytes) = 0;
  // Both return when the copies are done. Errors are the device's.
  virtual Status ToHost(std::span<const MemoryCopy> copies) = 0;
  virtual Status ToDevice(std::span<const MemoryCopy> copies) = 0;
  // Returns what waits until the steps launched so far are done; any thread may call it.
  virtual std::function<Status()> MarkSteps() = 0;
};

}  // namespace diffserve
