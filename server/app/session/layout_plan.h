// SPDX-License-Identifier: Apache-2.0
// LayoutPlan: the third step of a session's plan: how the KV pages of each layer are laid out, and
// the bytes that a page id takes. It follows from the flags, the model's config and the lengths.
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "kernels/attention/kv_format.h"
#include "kernels/base/dtype.h"
#include "kernels/base/status.h"
#include "models/model_config.h"
#include "server/app/session/lengths_plan.h"

namespace diffserve {

// The pages of a model's heads on a device.
struct PageKind {
  DiffSpec heads;
  int page_size = 0;
  bool on_gpu = false;

  // Whether the device has kernels for pages of this dtype with these heads.
  bool IsServedAs(DType dtype) const;
  KvFormat As(DType dtype) const;
};

struct LayoutDemand {
  std::string model_dir = {};  // for messages
  bool on_gpu = false;
  LengthsPlan lengths = {};
  DType weights = DType::kFloat32;    // the dtype of the weights, which pages have by default
  std::optional<DType> asked = {};    // --kv-cache-dtype
  std::vector<int> skip_layers = {};  // --kv-cache-dtype-skip-layers
};

struct LayoutPlan {
  PageKind pages;
  KvFormat layout;                // of KV pages
  std::vector<KvFormat> layouts;  // of each layer; some may be as --kv-cache-dtype auto has them
  size_t page_bytes = 0;          // of one page id, all layers and groups
  size_t window_page_bytes = 0;  // likewise of the layers with a window, if their ids are their own
};

// Error: a flag asks for pages that the device or the model does not have.
Result<LayoutPlan> PlanLayout(const LayoutDemand& demand, const ModelConfig& config);

}  // namespace diffserve
