// SPDX-License-Identifier: Apache-2.0
#include "models/model_config.h"

#include <algorithm>

namespace diffserve {

void ModelConfig::AddEndOfText(std::optional<int32_t> id) {
  if (!id || *id >= vocab_size) return;
  if (std::ranges::find(eos_token_ids, *id) != eos_token_ids.end()) return;
  eos_token_ids.push_back(*id);
}

int ModelConfig::num_kv_layers() const {
  return static_cast<int>(std::ranges::count_if(layers, &LayerConfig::writes_kv));
}

int ModelConfig::num_state_layers() const {
  return static_cast<int>(std::ranges::count_if(layers, &LayerConfig::has_state));
}

int ModelConfig::last_keeping_layer() const {
  const auto keeps = [](const LayerConfig& layer) {
    return layer.writes_kv() || layer.has_state();
  };
  const auto last = std::find_if(layers.rbegin(), layers.rend(), keeps);
  return static_cast<int>(layers.rend() - last) - 1;
}

}  // namespace diffserve
