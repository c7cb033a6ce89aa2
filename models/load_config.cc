// SPDX-License-Identifier: Apache-2.0
#include "models/load_config.h"

#include <algorithm>
#include <filesystem>

#include "models/config_reader.h"
#include "models/families/family.h"

namespace diffserve {
namespace {

// Larger sizes mean a broken file, not a model. Memory is checked when weights are loaded.
constexpr int kMaxVocab = 4 << 20;
constexpr int kMaxWidth = 1 << 20;  // hidden_size, intermediate_size
constexpr int kMaxLayers = 1024;
constexpr int kMaxPositions = 16 << 20;
constexpr char kWeightsName[] = "model.safetensors";

// Refuses keys of features that would change the model's results and are not supported.
void RefuseUnservedFeatures(ConfigReader& json, const Family& family) {
  struct Feature {
    const char* key;
    const char* name;
  };
  constexpr Feature kFeatures[] = {
      {"num_local_experts", "mixture of experts"},
      {"num_experts", "mixture of experts"},
      {"n_routed_experts", "mixture of experts"},
      {"moe_intermediate_size", "mixture of experts"},
      {"kv_lora_rank", "latent attention (MLA, GDLA)"},
  };
  for (const Feature& feature : kFeatures) {
    if (json.Has(feature.key))
      json.Fail(feature.key, std::string("is set: ") + feature.name + " cannot be served");
  }
  if (!family.has_windows && json.Has("sliding_window") && json.Bool("use_sliding_window", true)) {
    json.Fail("sliding_window", "is switched on: windowed attention cannot be served");
  }
  if (!family.has_windows) {
    for (const std::string& type : json.Strings("layer_types")) {
      if (type != "full_attention") json.Refuse("layer_types", "full_attention in every layer");
    }
  }
  if (json.Number("partial_rotary_factor", 1.0, 0, 1) != 1.0)
    json.Refuse("partial_rotary_factor", "1");
  if (json.String("transformers_weights", kWeightsName) != kWeightsName)
    json.Refuse("transformers_weights", kWeightsName);
}

DType ReadDType(ConfigReader& json) {
  const char* key = json.Has("dtype") ? "dtype" : "torch_dtype";
  const std::string name = json.String(key, "float32");
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (name == NameOf(dtype)) return dtype;
  }
  json.Refuse(key, "float32, bfloat16 or float16");
  return DType::kFloat32;
}

// End-of-sequence ids and the author's sampling defaults: generation_config.json, or, where that is
// absent, config.json, in which older models have them.
void ReadGenerationConfig(ConfigReader& json, ModelConfig& config) {
  std::vector<int32_t> eos = json.IntOrList("eos_token_id", 0, config.vocab_size - 1);
  if (!eos.empty()) config.eos_token_ids = std::move(eos);
  if (json.Has("bos_token_id"))
    config.bos_token_id = json.Int("bos_token_id", std::nullopt, 0, config.vocab_size - 1);
  if (json.Has("temperature"))
    config.default_temperature = static_cast<float>(
        json.Number("temperature", std::nullopt, 0, 100));
  if (json.Has("top_p")) {
    config.default_top_p = static_cast<float>(json.Number("top_p", std::nullopt, 0, 1));
    if (config.default_top_p == 0.0f) json.Refuse("top_p", "more than 0");
  }
  if (json.Has("min_p"))
    config.default_min_p = static_cast<float>(json.Number("min_p", std::nullopt, 0, 1));
  // -1 means all tokens, as 0 does.
  if (json.Has("top_k"))
    config.default_top_k = std::max(0, json.Int("top_k", std::nullopt, -1, INT32_MAX));
  if (json.Has("max_new_tokens"))
    config.default_max_tokens = json.Int("max_new_tokens", std::nullopt, 1, INT32_MAX);
  if (json.Has("repetition_penalty")) {
    config.default_repetition_penalty = static_cast<float>(
        json.Number("repetition_penalty", std::nullopt, 0.01, 100));
  }
}

Result<ModelConfig> ReadModelConfig(ConfigReader& json) {
  Result<const Family*> family = FindFamily(json);
  if (!family.ok()) return family.status();
  ModelConfig config;
  config.stores_fp8 = StoresFp8(json);
  if (!config.stores_fp8) config.packed = PackedFormat::Read(json);
  RefuseUnservedFeatures(json, **family);

  config.family = (*family)->name;
  config.checkpoint_dtype = ReadDType(json);
  config.vocab_size = json.Int("vocab_size", std::nullopt, 1, kMaxVocab);
  config.hidden_size = json.Int("hidden_size", std::nullopt, 1, kMaxWidth);
  config.intermediate_size = json.Int("intermediate_size", std::nullopt, 1, kMaxWidth);
  config.num_layers = json.Int("num_hidden_layers", std::nullopt, 1, kMaxLayers);
  config.max_positions = json.Int("max_position_embeddings", (*family)->default_max_positions, 1,
                                  kMaxPositions);
  config.tie_word_embeddings = json.Bool("tie_word_embeddings", false);
  config.rope = ReadRope(json, config.max_positions);
  config.eos_token_ids = json.IntOrList("eos_token_id", 0, config.vocab_size - 1);
  if (json.Has("bos_token_id"))
    config.bos_token_id = json.Int("bos_token_id", std::nullopt, 0, config.vocab_size - 1);
  DS_RETURN_IF_ERROR(json.status());

  (*family)->configure(json, config);
  DS_RETURN_IF_ERROR(json.status());
  if (config.layers.empty()) {
    for (int l = 0; l < config.num_layers; ++l) config.layers.push_back({.kv = l});
  }
  return config;
}

}  // namespace

Result<ModelConfig> LoadModelConfig(const std::string& model_dir) {
  Result<ConfigReader> json = ConfigReader::Open(
      (std::filesystem::path(model_dir) / "config.json").string());
  if (!json.ok()) return json.status();
  return LoadModelConfig(model_dir, *json);
}

Result<ModelConfig> LoadModelConfig(const std::string& model_dir, ConfigReader& json) {
  Result<ModelConfig> config = ReadModelConfig(json);
  if (!config.ok()) return config;

  const std::filesystem::path generation_path = std::filesystem::path(model_dir) /
                                                "generation_config.json";
  std::error_code absent;
  // A dangling link counts as present, and is an error.
  if (std::filesystem::symlink_status(generation_path, absent).type() !=
      std::filesystem::file_type::not_found) {
    Result<ConfigReader> generation = ConfigReader::Open(generation_path.string());
    if (!generation.ok()) return generation.status();
    ReadGenerationConfig(*generation, *config);
    DS_RETURN_IF_ERROR(generation->status());
  } else {
    ReadGenerationConfig(json, *config);
    DS_RETURN_IF_ERROR(json.status());
  }
  return config;
}

}  // namespace diffserve
