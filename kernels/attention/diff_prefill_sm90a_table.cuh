// SPDX-License-Identifier: Apache-2.0
// The head shapes that the Hopper prefill kernels are compiled for, by codec. Pages of codes have a
// file of their own, as these kernels take long to compile.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/attention/attention_launch.cuh"
#include "kernels/attention/diff_prefill_sm90a_kernel.cuh"

namespace diffserve::cuda {

struct HopperInstance {
  int head_dim;
  int v_dim;
  int k_maps;
  bool map_per_warpgroup;
  size_t page_bytes;
  size_t other_bytes;  // shared memory besides the stages
  void (*kernel)(AttentionLaunch);
  void (*quantised_kernel)(AttentionLaunch);

  int64_t NumStages(const DeviceLimits& limits) const {
    const int64_t for_pages = int64_t{limits.shared_bytes_max} - static_cast<int64_t>(other_bytes);
    return std::min<int64_t>(for_pages / static_cast<int64_t>(page_bytes), kHopperStagesMax);
  }

  template <typename Codec, int kHeadDim, int kVDim, int kKMaps>
  static constexpr HopperInstance Of() {
    using Shape = HopperShape<Codec, kHeadDim, kVDim, kKMaps>;
    return {kHeadDim,
            kVDim,
            kKMaps,
            Shape::kMapPerWarpgroup,
            Shape::kPageBytes,
            PageRing<Shape>::SharedBytes(0),
            DiffPrefillSm90aKernel<Codec, kHeadDim, kVDim, kKMaps>,
            DiffPrefillSm90aQuantisedKernel<Codec, kHeadDim, kVDim, kKMaps>};
  }
};

template <typename Codec>
const HopperInstance kHopperShapes[] = {
    HopperInstance::Of<Codec, 64, 64, 1>(),   HopperInstance::Of<Codec, 64, 128, 2>(),
    HopperInstance::Of<Codec, 64, 64, 2>(),   HopperInstance::Of<Codec, 64, 128, 1>(),
    HopperInstance::Of<Codec, 128, 128, 1>(), HopperInstance::Of<Codec, 128, 256, 2>(),
    HopperInstance::Of<Codec, 128, 128, 2>(), HopperInstance::Of<Codec, 128, 256, 1>(),
};

// The one for pages of codes; nullptr: there is none.
const HopperInstance* FindHopperCodes(const DiffSpec& spec, DType dtype);

}  // namespace diffserve::cuda
