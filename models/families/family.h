// A family is data: how config.json becomes a ModelConfig. models/decoder.cc runs them all.
#pragma once

#include "models/config_reader.h"
#include "models/model_config.h"

namespace diffserve {

// Head counts as config.json gives them: physical heads of width head_dim.
struct PhysicalHeads {
  int num_q = 0;
  int num_kv = 0;
  int head_dim = 0;
};

struct Family {
  const char* name;          // as `diffserve inspect` prints it
  const char* model_type;    // config.json's "model_type"
  const char* architecture;  // the one entry of config.json's "architectures" that is served
  // Fills attention, head_order, lambda_init, rope.style, rms_norm_eps and whatever else differs from Llama. The common keys
  // (sizes, rope, token ids) have been read already. Problems are recorded in the reader.
  void (*configure)(ConfigReader& json, const PhysicalHeads& heads, ModelConfig& config);
};

// The family of this config.json; an unknown one is an error that lists what is served. Code that a checkpoint brings along
// (auto_map) is never run: the families are those compiled in.
Result<const Family*> FindFamily(ConfigReader& json);

extern const Family kDiffLlamaFamily;
extern const Family kLlamaFamily;

}  // namespace diffserve
