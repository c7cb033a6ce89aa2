// SPDX-License-Identifier: Apache-2.0
// A family is data: how config.json becomes a ModelConfig. models/decoder.cc runs them all.
#pragma once

#include "models/config_reader.h"
#include "models/model_config.h"

namespace diffserve {

struct Family {
  const char* name;          // as `diffserve inspect` prints it
  const char* model_type;    // config.json's "model_type", in upper or lower case
  const char* architecture;  // the only accepted entry of config.json's "architectures"
  std::optional<int> default_max_positions;  // default if config.json has none; nullopt: it is
                                             // required
  // Fills attention, head_order, lambda_init, rope.style, norm_eps, biases, mlp and whatever else
  // differs between families. The common keys (sizes, rope, token ids) have been read already.
  // Problems are recorded in the reader.
  void (*configure)(ConfigReader& json, ModelConfig& config);
  // configure reads sliding_window and layer_types; in other families windows are refused.
  bool has_windows = false;
};

// The family of this config.json. Error: an unknown family; the message lists those served. Code in
// a checkpoint (auto_map) is never run: families are compiled in.
Result<const Family*> FindFamily(ConfigReader& json);

extern const Family kDiffLlamaFamily;
extern const Family kDiffTransformerFamily;
extern const Family kDiffTransformerV2Family;
extern const Family kLlamaFamily;
extern const Family kMotifFamily;
extern const Family kPhi4FlashFamily;

}  // namespace diffserve
