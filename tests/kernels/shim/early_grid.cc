// SPDX-License-Identifier: Apache-2.0
// Grids that start before the kernel before them ends.
#include <algorithm>

#include "tests/kernels/shim/device_memory.h"
#include "tests/kernels/shim/grid.h"
#include "tests/kernels/shim/host_calls.h"

namespace diffserve::shim {
namespace {

constexpr size_t kEarlyBlocks = 8;

}  // namespace

bool StartsEarly() {
  constexpr int64_t kStride = 101;
  static int64_t later = 0;
  if (grid_options.seed % 3 == 0 || !SeesWrites()) return false;
  return early_kernels < kAllWatched || ++later % kStride == 0;
}

EarlyGrid::EarlyGrid(const GridShape& shape, std::function<void()> thread)
    : shape_(shape), thread_(std::move(thread)), blocks_(BlocksOf(shape.grid)) {
  std::mt19937 random(grid_options.seed);
  std::shuffle(blocks_.begin(), blocks_.end(), random);
}
EarlyGrid::~EarlyGrid() = default;

std::string EarlyGrid::RunToWaits() {
  std::string error;
  for (size_t i = 0; i < std::min(blocks_.size(), kEarlyBlocks) && error.empty(); ++i) {
    const uint32_t seed = grid_options.seed + static_cast<uint32_t>(i) * 1009;
    started_.push_back(std::make_unique<Grid>(shape_, grid_options, thread_, seed));
    grid = started_.back().get();
    error = grid->Start(blocks_[i]);
  }
  grid = nullptr;
  return error;
}

std::string EarlyGrid::RunRest() {
  std::string error;
  Grid others(shape_, grid_options, thread_, grid_options.seed);
  for (size_t i = blocks_.size(); i-- > 0 && error.empty();) {
    grid = i < started_.size() ? started_[i].get() : &others;
    error = i < started_.size() ? grid->Finish() : grid->Run(blocks_[i]);
  }
  grid = nullptr;
  bool has_counters = others.HasCounters();
  for (const std::unique_ptr<Grid>& block : started_) has_counters |= block->HasCounters();
  return error.empty() && has_counters ? kOpenCounters : error;
}

}  // namespace diffserve::shim
