// SPDX-License-Identifier: Apache-2.0
#include "models/step_transfer_cuda.h"

#include <algorithm>

#include "kernels/process/check.h"

namespace diffserve::cuda {

Result<StepUpload> StepUpload::Create() {
  StepUpload upload;
  for (PinnedCopy& copy : upload.ring_) DS_RETURN_IF_ERROR(Assign(&copy.done, Event::Create()));
  return upload;
}

Status StepUpload::Copy(const PackedStep& step, const Stream& stream) {
  const size_t bytes = step.size_bytes();
  const size_t room = std::max(bytes + bytes / 4, kBytes);
  PinnedCopy& copy = ring_[next_++ % ring_.size()];
  if (next_ > ring_.size()) DS_RETURN_IF_ERROR(copy.done->Wait());
  if (copy.buffer.size_bytes() < bytes)
    DS_RETURN_IF_ERROR(Assign(&copy.buffer, PinnedBuffer::Allocate(room)));
  if (memory_.size_bytes() < bytes) {
    DS_RETURN_IF_ERROR(stream.Synchronize());
    memory_ = DeviceBuffer();
    DS_RETURN_IF_ERROR(Assign(&memory_, DeviceBuffer::Allocate(room)));
  }
  step.Write(copy.buffer.as<std::byte>());
  DS_RETURN_IF_ERROR(CopyToDevice(copy.buffer.bytes().first(bytes), memory_, 0, stream));
  return stream.Record(*copy.done);
}

Result<StepResults> StepResults::Create(int draws_max) {
  StepResults results;
  const size_t bytes = static_cast<size_t>(draws_max) * sizeof(SampledToken);
  for (PinnedCopy& copy : results.ring_) {
    DS_RETURN_IF_ERROR(Assign(&copy.done, Event::Create()));
    DS_RETURN_IF_ERROR(Assign(&copy.buffer, PinnedBuffer::Allocate(bytes)));
  }
  return results;
}

Status StepResults::Queue(const DeviceBuffer& sampled, size_t count, const Stream& stream) {
  DS_CHECK(!is_full(), "too many steps in flight");
  const size_t slot = next_++ % ring_.size();
  const PinnedCopy& copy = ring_[slot];
  DS_RETURN_IF_ERROR(
      CopyToHost(sampled, 0, copy.buffer.bytes().first(count * sizeof(SampledToken)), stream));
  DS_RETURN_IF_ERROR(stream.Record(*copy.done));
  launched_.push_back({slot, count});
  return Status();
}

Result<std::vector<SampledToken>> StepResults::Collect() {
  DS_CHECK(!launched_.empty(), "a step with draws is launched before it is collected");
  const Launched launched = launched_.front();
  launched_.pop_front();
  const PinnedCopy& copy = ring_[launched.slot];
  DS_RETURN_IF_ERROR(copy.done->Wait());
  const auto* rows = copy.buffer.as<SampledToken>();
  return std::vector<SampledToken>(rows, rows + launched.count);
}

}  // namespace diffserve::cuda
