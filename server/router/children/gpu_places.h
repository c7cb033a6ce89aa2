// SPDX-License-Identifier: Apache-2.0
// Which GPU each model gets, and which share of its memory, decided from numbers.
// Thread safety: pure function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace diffserve {

// What models share of a GPU. The rest is for CUDA's contexts and graphs, of which each process has
// its own.
inline constexpr double kGpuShareMax = 0.9;
// The least that a model gets for its pages.
inline constexpr double kPagesShareMin = 0.1;

struct UsableGpu {
  size_t number = 0;  // CUDA's
  int64_t bytes = 0;  // of memory
};

struct GpuDemand {
  std::optional<size_t> gpu = {};  // CUDA's number of the only one that it may get
  int64_t bytes = 0;               // of weights and a step; 0: not known
  bool pinned = false;
  double share = 0;  // that its flags give it; 0: none
};

struct GpuPlace {
  size_t gpu = 0;  // its place in `gpus`
  double share = 0;
};

// Each model gets the GPU of which least is then demanded, then the one with the fewest models.
// Those that demand one come first, then the pinned ones. A model's share is that of its flags, or
// its bytes and an equal part of what is left by all that may be loaded at once, so these fit
// together if they can. If they cannot, each gets kPagesShareMin for its pages.
// `max_loaded`: 0: no limit. REQUIRES: `gpus` has a GPU, and each that is demanded.
std::vector<GpuPlace> SpreadOverGpus(std::span<const GpuDemand> demands,
                                     std::span<const UsableGpu> gpus, int max_loaded);

}  // namespace diffserve
