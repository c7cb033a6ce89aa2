// SPDX-License-Identifier: Apache-2.0
// Transfers between host and device in a step: the packed batch goes up, the draws come down. Both
// go through pinned memory, one piece per step in flight. So the host packs a step while the device
// computes the previous one.
//
// Thread safety: none; owned by the step runner.
#pragma once

#include <array>
#include <deque>
#include <optional>
#include <vector>

#include "kernels/base/cuda/memory.h"
#include "models/step_batch_cuda.h"

namespace diffserve::cuda {

inline constexpr int kStepsInFlightMax = 2;

// Host memory that a copy reads or writes; free again when its event is done.
struct PinnedCopy {
  PinnedBuffer buffer;
  std::optional<Event> done;
};

class StepUpload {
 public:
  static constexpr size_t kBytes = size_t{1} << 20;  // initial size for a packed step

  static Result<StepUpload> Create();
  // Queues the copy to memory(), which grows rarely: to the largest step seen, with its page
  // tables, adjustments and masks.
  Status Copy(const PackedStep& step, const Stream& stream);
  std::byte* memory() const { return memory_.as<std::byte>(); }

 private:
  std::array<PinnedCopy, kStepsInFlightMax> ring_;
  size_t next_ = 0;
  DeviceBuffer memory_;
};

class StepResults {
 public:
  // For steps with at most `draws_max` draws.
  static Result<StepResults> Create(int draws_max);
  bool is_full() const { return launched_.size() == kStepsInFlightMax; }
  // Queues the copy of a step's draws. REQUIRES: !is_full().
  Status Queue(const DeviceBuffer& sampled, size_t count, const Stream& stream);
  // Waits for the draws of the oldest step. REQUIRES: one was queued.
  Result<std::vector<SampledToken>> Collect();

 private:
  struct Launched {
    size_t slot;  // in ring_
    size_t count;
  };
  std::array<PinnedCopy, kStepsInFlightMax> ring_;
  size_t next_ = 0;
  std::deque<Launched> launched_;
};

}  // namespace diffserve::cuda
