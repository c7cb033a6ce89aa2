// SPDX-License-Identifier: Apache-2.0
#include "server/router/children/gpu_places.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <tuple>

#include "kernels/process/check.h"

namespace diffserve {
namespace {

class GpuSpread {
 public:
  GpuSpread(std::span<const GpuDemand> demands, std::span<const UsableGpu> gpus, int max_loaded)
      : demands_(demands),
        gpus_(gpus),
        max_loaded_(max_loaded == 0 ? std::numeric_limits<size_t>::max()
                                    : static_cast<size_t>(max_loaded)),
        places_(demands.size()),
        models_(gpus.size()) {}

  std::vector<GpuPlace> Spread() {
    for (size_t i = 0; i < demands_.size(); ++i) {
      if (!demands_[i].gpu) continue;
      const auto found = std::ranges::find(gpus_, *demands_[i].gpu, &UsableGpu::number);
      DS_CHECK(found != gpus_.end(), "a demanded GPU is one of those that there are");
      Put(i, static_cast<size_t>(found - gpus_.begin()));
    }
    for (const bool pinned : {true, false}) {
      for (size_t i = 0; i < demands_.size(); ++i) {
        if (!demands_[i].gpu && demands_[i].pinned == pinned) Put(i, EmptiestFor(i));
      }
    }
    for (size_t gpu = 0; gpu < gpus_.size(); ++gpu) SetShares(gpu);
    return std::move(places_);
  }

 private:
  double NeedOf(size_t model, size_t gpu) const {
    return static_cast<double>(demands_[model].bytes) / static_cast<double>(gpus_[gpu].bytes);
  }

  void Put(size_t model, size_t gpu) {
    places_[model].gpu = gpu;
    models_[gpu].push_back(model);
  }

  size_t EmptiestFor(size_t model) const {
    const auto load_of = [&](size_t gpu) {
      double load = NeedOf(model, gpu);
      for (const size_t other : models_[gpu]) load += NeedOf(other, gpu);
      return std::tuple(load, models_[gpu].size(), gpu);
    };
    size_t best = 0;
    for (size_t gpu = 1; gpu < gpus_.size(); ++gpu) {
      if (load_of(gpu) < load_of(best)) best = gpu;
    }
    return best;
  }

  void SetShares(size_t gpu) {
    double left = kGpuShareMax;
    std::vector<double> needs;  // of the models without a share of their own
    for (const size_t model : models_[gpu]) {
      if (demands_[model].share > 0)
        left -= max_loaded_ > 1 ? demands_[model].share : 0;
      else
        needs.push_back(NeedOf(model, gpu));
    }
    std::ranges::sort(needs, std::greater<>());
    needs.resize(std::min(needs.size(), max_loaded_));
    for (const double need : needs) left -= need;
    const double pages = std::max(kPagesShareMin,
                                  left / static_cast<double>(std::max<size_t>(1, needs.size())));
    for (const size_t model : models_[gpu]) {
      const double own = demands_[model].share;
      places_[model].share = own > 0 ? own : std::min(kGpuShareMax, NeedOf(model, gpu) + pages);
    }
  }

  const std::span<const GpuDemand> demands_;
  const std::span<const UsableGpu> gpus_;
  const size_t max_loaded_;
  std::vector<GpuPlace> places_;             // [demands]
  std::vector<std::vector<size_t>> models_;  // [gpus] places in `demands`
};

}  // namespace

std::vector<GpuPlace> SpreadOverGpus(std::span<const GpuDemand> demands,
                                     std::span<const UsableGpu> gpus, int max_loaded) {
  DS_CHECK(!gpus.empty(), "models are spread over at least one GPU");
  return GpuSpread(demands, gpus, max_loaded).Spread();
}

}  // namespace diffserve
