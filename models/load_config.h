// SPDX-License-Identifier: Apache-2.0
// LoadModelConfig: reads a model's config.json and generation_config.json. The family that
// config.json names says how.
#pragma once

#include <string>

#include "kernels/base/status.h"
#include "models/config_reader.h"
#include "models/model_config.h"

namespace diffserve {

// Reads DIR/config.json and, if it exists, DIR/generation_config.json. Every error is one line:
// file, key, found, allowed.
Result<ModelConfig> LoadModelConfig(const std::string& model_dir);
// The same with `json` instead of DIR/config.json.
Result<ModelConfig> LoadModelConfig(const std::string& model_dir, ConfigReader& json);

}  // namespace diffserve
