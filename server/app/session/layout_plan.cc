// SPDX-License-Identifier: Apache-2.0
#include "server/app/session/layout_plan.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "kernels/attention/diff_attention.h"
#include "kernels/base/cuda/device.h"
#include "kernels/base/refusal.h"
#include "models/kv_cache.h"

namespace diffserve {
namespace {

// Refuses page formats that the device does not have for any head shape.
Status CheckPageType(const LayoutDemand& demand) {
  const bool on_gpu = demand.on_gpu;
  const std::span<const DType> types = on_gpu ? std::span<const DType>(cuda::kPageTypes)
                                              : std::span<const DType>(cpu::kPageTypes);
  const DType asked = demand.asked.value_or(DType::kBFloat16);
  if (std::ranges::find(types, asked) != types.end()) return {};
  std::string allowed = "auto";
  for (DType dtype : types) allowed += ", " + std::string(NameOf(dtype));
  if (on_gpu) allowed += " (or --device cpu)";
  if (!on_gpu && cuda::IsCompiledIn()) allowed += " (or --device cuda)";
  return NotAllowed(
      "--kv-cache-dtype is " + std::string(NameOf(asked)) + " on a " + (on_gpu ? "GPU" : "CPU"),
      allowed, "--kv-cache-dtype");
}

// Refuses a head shape that has no kernel for the page format.
Status CheckHeads(const PageKind& pages, const KvCodec& codec) {
  if (pages.IsServedAs(codec.dtype)) return {};
  return InvalidArgument(
      "--kv-cache-dtype is " + std::string(NameOf(codec.dtype)) +
          ", which needs a head_dim that is a multiple of " + std::to_string(codec.k_pack) +
          " and V as wide or twice as wide; head_dim " + std::to_string(pages.heads.head_dim) +
          ", V " + std::to_string(pages.heads.v_dim),
      "--kv-cache-dtype");
}

// The layer with K and V that `layer` of --kv-cache-dtype-skip-layers is.
Result<int> KvLayer(const LayoutDemand& demand, const ModelConfig& config, int layer) {
  const char* const kFlag = "--kv-cache-dtype-skip-layers";
  const std::string found = std::string(kFlag) + " has " + std::to_string(layer);
  if (layer < -config.num_layers || layer >= config.num_layers) {
    return NotAllowed(found,
                      RangeText(-config.num_layers, config.num_layers - 1) + ", the layers of " +
                          demand.model_dir,
                      kFlag);
  }
  const int from_first = layer < 0 ? layer + config.num_layers : layer;
  const LayerConfig& kind = config.layers[static_cast<size_t>(from_first)];
  if (kind.writes_kv()) return kind.kv;
  return InvalidArgument(found + ", a layer without K and V of its own", kFlag);
}

// Bytes of a page id in all layers with, or without, page ids for windows.
size_t BytesOfPage(const ModelConfig& config, const std::vector<KvFormat>& layouts, int window,
                   bool in_windows) {
  std::vector<KvFormat> layers;
  for (const LayerConfig& layer : config.layers) {
    const bool is_apart = layer.window > 0 && window > 0;
    if (layer.writes_kv() && is_apart == in_windows)
      layers.push_back(layouts[static_cast<size_t>(layer.kv)]);
  }
  return KvCache::BytesPerPage(layers);
}

}  // namespace

bool PageKind::IsServedAs(DType dtype) const {
  if (!on_gpu) return cpu::TakesPages(heads, As(dtype).codec);
  return std::ranges::find(cuda::kPageTypes, dtype) != std::end(cuda::kPageTypes);
}

KvFormat PageKind::As(DType dtype) const {
  return KvFormat::Of(heads, page_size, dtype,
                      on_gpu ? KvArrangement::kImage : KvArrangement::kSlotLanes);
}

Result<LayoutPlan> PlanLayout(const LayoutDemand& demand, const ModelConfig& config) {
  DS_RETURN_IF_ERROR(CheckPageType(demand));
  LayoutPlan plan;
  plan.pages = {config.attention, demand.lengths.page_size, demand.on_gpu};
  plan.layout = plan.pages.As(demand.asked.value_or(demand.weights));
  DS_RETURN_IF_ERROR(CheckHeads(plan.pages, plan.layout.codec));
  plan.layouts.assign(static_cast<size_t>(config.num_kv_layers()), plan.layout);
  for (const int layer : demand.skip_layers) {
    const Result<int> kv = KvLayer(demand, config, layer);
    if (!kv.ok()) return kv.status();
    plan.layouts[static_cast<size_t>(*kv)] = plan.pages.As(demand.weights);
  }
  const int window = demand.lengths.window;
  plan.page_bytes = BytesOfPage(config, plan.layouts, window, /*in_windows=*/false);
  plan.window_page_bytes = BytesOfPage(config, plan.layouts, window, /*in_windows=*/true);
  return plan;
}

}  // namespace diffserve
