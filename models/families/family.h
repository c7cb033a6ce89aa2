// A family is data: how config.json becomes a ModelConfig. models/decoder.cc runs them all.
#pragma once

#include "models/config_reader.h"
#include "models/model_config.h"

namespace diffserve {

struct Family {
  const char* name;          // as `diffserve inspect` prints it
  const char* model_type;    // config.json's "model_type"; the case of its letters does not matter
  const char* architecture;  // the one entry of config.json's "architectures" that is served
  std::optional<int> default_max_positions;  // where config.json is silent; nullopt: it must say
  // Fills attention, head_order, lambda_init, rope.style, norm_eps, biases, mlp and whatever
  // else differs between families. The common keys (sizes, rope, token ids) have been read already.
  // Problems are recorded in the reader.
  void (*configure)(ConfigReader& json, ModelConfig& config);
  bool has_windows = false;  // configure looks at sliding_window and layer_types; elsewhere windows
                             // are refused
};

// The family of this config.json; an unknown one is an error that lists what is served. Code that a
// checkpoint brings along (auto_map) is never run: the families are those compiled in.
Result<const Family*> FindFamily(ConfigReader& json);

extern const Family kDiffLlamaFamily;
extern const Family kDiffTransformerFamily;
extern const Family kDiffTransformerV2Family;
extern const Family kLlamaFamily;
extern const Family kMotifFamily;
extern const Family kPhi4FlashFamily;

}  // namespace diffserve
