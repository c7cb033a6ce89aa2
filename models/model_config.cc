#include "models/model_config.h"

#include <cmath>
#include <filesystem>
#include <numbers>

#include "models/config_reader.h"
#include "models/families/family.h"

namespace diffserve {
namespace {

// Sizes beyond these are a broken file, not a model. Memory is checked when weights are loaded.
constexpr int kMaxVocab = 4 << 20;
constexpr int kMaxWidth = 1 << 20;  // hidden_size, intermediate_size, heads * head_dim
constexpr int kMaxLayers = 1024;
constexpr int kMaxHeads = 4096;
constexpr int kMaxHeadDim = 1024;
constexpr int kMaxPositions = 16 << 20;

// Features that would change what the model computes and are not served: their keys must be absent.
void RefuseUnservedFeatures(ConfigReader& json) {
  struct Feature { const char* key; const char* name; };
  constexpr Feature kFeatures[] = {
      {"quantization_config", "quantised weights"},
      {"num_local_experts", "mixture of experts"},
      {"num_experts", "mixture of experts"},
      {"n_routed_experts", "mixture of experts"},
      {"moe_intermediate_size", "mixture of experts"},
  };
  for (const Feature& feature : kFeatures) {
    if (json.Has(feature.key)) json.Fail(feature.key, std::string("is set: ") + feature.name + " cannot be served");
  }
  if (json.Has("sliding_window") && json.Bool("use_sliding_window", true)) {
    json.Fail("sliding_window", "is switched on: windowed attention cannot be served");
  }
  for (const std::string& type : json.Strings("layer_types")) {
    if (type != "full_attention") json.Refuse("layer_types", "full_attention in every layer");
  }
  if (json.String("hidden_act", "silu") != "silu") json.Refuse("hidden_act", "silu");
  if (json.Number("partial_rotary_factor", 1.0, 0, 1) != 1.0) json.Refuse("partial_rotary_factor", "1");
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

// Keys of a scaling object: config.json's rope_scaling (older transformers) or rope_parameters (from version 5 on).
void ReadRopeScaling(ConfigReader& json, int max_positions, RopeConfig& rope) {
  rope.theta = json.Number("rope_theta", rope.theta, 1.0, 1e12);
  if (json.Number("partial_rotary_factor", 1.0, 0, 1) != 1.0) json.Refuse("partial_rotary_factor", "1");
  for (const char* layer_type : {"full_attention", "sliding_attention"}) {
    if (json.Has(layer_type)) json.Fail(layer_type, "is set: rope parameters that differ between layers cannot be served");
  }
  const char* type_key = json.Has("rope_type") ? "rope_type" : "type";
  const std::string type = json.String(type_key, "default");
  if (type == "default") return;
  if (type != "linear" && type != "llama3") {
    json.Refuse(type_key, "default, linear or llama3");
    return;
  }
  rope.factor = json.Number("factor", std::nullopt, 1e-6, 1e6);
  rope.type = RopeConfig::Type::kLinear;
  if (type == "linear") return;
  rope.type = RopeConfig::Type::kLlama3;
  rope.low_freq_factor = json.Number("low_freq_factor", std::nullopt, 1e-6, 1e6);
  rope.high_freq_factor = json.Number("high_freq_factor", std::nullopt, 1e-6, 1e6);
  rope.original_max_positions = json.Int("original_max_position_embeddings", max_positions, 1, kMaxPositions);
  if (!(rope.high_freq_factor > rope.low_freq_factor)) json.Refuse("high_freq_factor", "more than low_freq_factor");
}

RopeConfig ReadRope(ConfigReader& json, int max_positions) {
  RopeConfig rope;
  rope.theta = json.Number("rope_theta", rope.theta, 1.0, 1e12);
  // As transformers does where both are given: the older spelling wins.
  std::optional<ConfigReader> scaling = json.Object("rope_scaling");
  if (!scaling) scaling = json.Object("rope_parameters");
  if (scaling) ReadRopeScaling(*scaling, max_positions, rope);
  return rope;
}

PhysicalHeads ReadHeads(ConfigReader& json, int hidden_size) {
  PhysicalHeads heads;
  heads.num_q = json.Int("num_attention_heads", std::nullopt, 1, kMaxHeads);
  heads.num_kv = json.Int("num_key_value_heads", heads.num_q, 1, kMaxHeads);
  if (!json.Has("head_dim") && hidden_size % heads.num_q != 0) {
    json.Refuse("num_attention_heads", "a divisor of hidden_size = " + std::to_string(hidden_size) + ", or head_dim to be given");
  }
  heads.head_dim = json.Int("head_dim", hidden_size / heads.num_q, 0, kMaxHeadDim);
  if (heads.head_dim < 2 || heads.head_dim % 2 != 0) {
    json.Fail("head_dim", "is " + std::to_string(heads.head_dim) + ", expected an even number in 2.." +
                              std::to_string(kMaxHeadDim));
  }
  if (heads.num_q % heads.num_kv != 0) {
    json.Refuse("num_key_value_heads", "a divisor of num_attention_heads = " + std::to_string(heads.num_q));
  }
  if (heads.num_q * heads.head_dim > kMaxWidth) {
    json.Refuse("num_attention_heads", "heads of " + std::to_string(kMaxWidth) + " values at most in all");
  }
  return heads;
}

// generation_config.json: end-of-sequence ids and the sampling defaults of its author.
void ReadGenerationConfig(ConfigReader& json, ModelConfig& config) {
  std::vector<int32_t> eos = json.IntOrList("eos_token_id", 0, config.vocab_size - 1);
  if (!eos.empty()) config.eos_token_ids = std::move(eos);
  if (json.Has("bos_token_id")) config.bos_token_id = json.Int("bos_token_id", std::nullopt, 0, config.vocab_size - 1);
  if (json.Has("temperature")) config.default_temperature = static_cast<float>(json.Number("temperature", std::nullopt, 0, 100));
  if (json.Has("top_p")) {
    config.default_top_p = static_cast<float>(json.Number("top_p", std::nullopt, 0, 1));
    if (config.default_top_p == 0.0f) json.Refuse("top_p", "more than 0");
  }
  if (json.Has("top_k")) config.default_top_k = json.Int("top_k", std::nullopt, 0, INT32_MAX);
  if (json.Has("repetition_penalty")) {
    config.default_repetition_penalty = static_cast<float>(json.Number("repetition_penalty", std::nullopt, 0.01, 100));
  }
}

Result<ModelConfig> ReadModelConfig(ConfigReader& json) {
  Result<const Family*> family = FindFamily(json);
  if (!family.ok()) return family.status();
  RefuseUnservedFeatures(json);

  ModelConfig config;
  config.family = (*family)->name;
  config.checkpoint_dtype = ReadDType(json);
  config.vocab_size = json.Int("vocab_size", std::nullopt, 1, kMaxVocab);
  config.hidden_size = json.Int("hidden_size", std::nullopt, 1, kMaxWidth);
  config.intermediate_size = json.Int("intermediate_size", std::nullopt, 1, kMaxWidth);
  config.num_layers = json.Int("num_hidden_layers", std::nullopt, 1, kMaxLayers);
  config.max_positions = json.Int("max_position_embeddings", 2048, 1, kMaxPositions);
  config.tie_word_embeddings = json.Bool("tie_word_embeddings", false);
  config.attention_bias = json.Bool("attention_bias", false);
  const PhysicalHeads heads = ReadHeads(json, config.hidden_size);
  config.rope = ReadRope(json, config.max_positions);
  config.eos_token_ids = json.IntOrList("eos_token_id", 0, config.vocab_size - 1);
  if (json.Has("bos_token_id")) config.bos_token_id = json.Int("bos_token_id", std::nullopt, 0, config.vocab_size - 1);
  DS_RETURN_IF_ERROR(json.status());

  (*family)->configure(json, heads, config);
  DS_RETURN_IF_ERROR(json.status());
  return config;
}

// Llama 3.1's scaling: a wave much longer than the original context is slowed down, a short one is kept, between them is blended.
float Llama3Frequency(const RopeConfig& rope, float plain) {
  const float context = static_cast<float>(rope.original_max_positions);
  const float factor = static_cast<float>(rope.factor);
  const float low = static_cast<float>(rope.low_freq_factor);
  const float high = static_cast<float>(rope.high_freq_factor);
  const float wavelength = static_cast<float>(2 * std::numbers::pi) / plain;
  if (wavelength > context / low) return plain / factor;
  if (wavelength < context / high) return plain;
  const float keep = (context / wavelength - low) / (high - low);
  return (1 - keep) * plain / factor + keep * plain;
}

}  // namespace

std::vector<double> InverseFrequencies(const RopeConfig& rope, int head_dim) {
  std::vector<double> frequencies;
  for (int i = 0; i < head_dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    const float plain = 1.0f / std::pow(static_cast<float>(rope.theta), exponent);
    switch (rope.type) {
      case RopeConfig::Type::kDefault: frequencies.push_back(plain); break;
      case RopeConfig::Type::kLinear: frequencies.push_back(plain / static_cast<float>(rope.factor)); break;
      case RopeConfig::Type::kLlama3: frequencies.push_back(Llama3Frequency(rope, plain)); break;
    }
  }
  return frequencies;
}

Result<ModelConfig> LoadModelConfig(const std::string& model_dir) {
  const std::filesystem::path dir(model_dir);
  Result<ConfigReader> json = ConfigReader::Open((dir / "config.json").string());
  if (!json.ok()) return json.status();
  Result<ModelConfig> config = ReadModelConfig(*json);
  if (!config.ok()) return config;

  const std::filesystem::path generation_path = dir / "generation_config.json";
  std::error_code absent;
  if (std::filesystem::exists(generation_path, absent)) {
    Result<ConfigReader> generation = ConfigReader::Open(generation_path.string());
    if (!generation.ok()) return generation.status();
    ReadGenerationConfig(*generation, *config);
    DS_RETURN_IF_ERROR(generation->status());
  }
  return config;
}

}  // namespace diffserve
