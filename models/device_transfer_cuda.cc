// SPDX-License-Identifier: Apache-2.0
#include "models/device_transfer_cuda.h"

#include <mutex>
#include <utility>

#include "kernels/base/cuda/memory.h"

namespace diffserve::cuda {
namespace {

class StreamTransfer : public DeviceTransfer {
 public:
  StreamTransfer(const Stream& steps, Stream copies, Event copied)
      : steps_(steps), copies_(std::move(copies)), copied_(std::move(copied)) {}

  Result<std::shared_ptr<std::byte>> AllocateHost(size_t size_bytes) override {
    DS_RETURN_IF_ERROR(copies_.UseDevice());
    Result<PinnedBuffer> buffer = PinnedBuffer::Allocate(size_bytes);
    if (!buffer.ok()) return buffer.status();
    const auto owner = std::make_shared<PinnedBuffer>(std::move(*buffer));
    return std::shared_ptr<std::byte>(owner, owner->as<std::byte>());
  }
  Status ToHost(std::span<const MemoryCopy> copies) override { return Copy<&CopyToPinned>(copies); }
  Status ToDevice(std::span<const MemoryCopy> copies) override {
    return Copy<&CopyFromPinned>(copies);
  }
  std::function<Status()> MarkSteps() override {
    Result<Event> created = Event::Create();
    if (!created.ok()) return [status = created.status()] { return status; };
    const auto event = std::make_shared<Event>(std::move(*created));
    const Status recorded = steps_.Record(*event);
    if (!recorded.ok()) return [recorded] { return recorded; };
    return [event, this] {
      DS_RETURN_IF_ERROR(copies_.UseDevice());
      return event->Wait();
    };
  }

 private:
  template <auto kCopy>
  Status Copy(std::span<const MemoryCopy> copies) {
    const std::lock_guard lock(mutex_);
    DS_RETURN_IF_ERROR(copies_.UseDevice());
    for (const MemoryCopy& copy : copies)
      DS_RETURN_IF_ERROR(kCopy(copy.from, copy.to, copy.size_bytes, copies_));
    DS_RETURN_IF_ERROR(copies_.Record(copied_));
    return copied_.Wait();
  }

  const Stream& steps_;
  std::mutex mutex_;  // of what follows
  const Stream copies_;
  const Event copied_;
};

}  // namespace

Result<std::shared_ptr<DeviceTransfer>> MakeTransfer(const Stream& steps) {
  Result<Stream> copies = Stream::Create();
  if (!copies.ok()) return copies.status();
  Result<Event> copied = Event::Create();
  if (!copied.ok()) return copied.status();
  return std::shared_ptr<DeviceTransfer>(
      std::make_shared<StreamTransfer>(steps, std::move(*copies), std::move(*copied)));
}

}  // namespace diffserve::cuda
