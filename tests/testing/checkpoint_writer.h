// SPDX-License-Identifier: Apache-2.0
// Writes tiny checkpoints for tests: a safetensors file from parts, and whole model directories
// that Model::Load accepts.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "models/dummy_weights.h"
#include "tests/testing/temporary_directory.h"

namespace diffserve {

struct FileTensor {
  std::string name;
  std::string dtype;  // as the format spells it
  std::vector<int64_t> shape;
  std::string bytes;
};

// The length field and the header: `json` as it is.
inline std::string SafetensorsHeaderBytes(const std::string& json) {
  const uint64_t length = json.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + json;
}

inline std::string SafetensorsBytes(const std::vector<FileTensor>& tensors) {
  std::string json = "{", data;
  for (const FileTensor& tensor : tensors) {
    json += (json.size() > 1 ? ",\"" : "\"") + tensor.name + "\":{\"dtype\":\"" + tensor.dtype +
            "\",\"shape\":[";
    for (size_t i = 0; i < tensor.shape.size(); ++i)
      json.append(i > 0 ? "," : "").append(std::to_string(tensor.shape[i]));
    json += "],\"data_offsets\":[" + std::to_string(data.size()) + ",";
    data += tensor.bytes;
    json += std::to_string(data.size()) + "]}";
  }
  return SafetensorsHeaderBytes(json + "}") + data;
}

// config.json's "architectures" for a "model_type".
inline std::string ArchitectureOf(const std::string& model_type) {
  if (model_type == "llama") return "LlamaForCausalLM";
  if (model_type == "diff_transformer") return "DiffTransformerForCausalLM";
  if (model_type == "diff_transformer_v2") return "DiffTransformerV2ForCausalLM";
  if (model_type == "motif") return "MotifForCausalLM";
  if (model_type == "phi4flash") return "Phi4FlashForCausalLM";
  return "DiffLlamaForCausalLM";
}

struct TinyCheckpointOptions {
  std::string family = "diffllama";  // config.json's model_type; tensors are written for diffllama
                                     // and llama
  int vocab_size = 128;
  int hidden_size = 32;
  int intermediate_size = 48;
  int num_layers = 2;
  int num_heads = 4;
  int num_kv_heads = 2;
  int max_positions = 256;
  int eos_token_id = 2;
  bool tie_word_embeddings = true;
  DType dtype = DType::kFloat32;  // float32 or bfloat16
  uint64_t seed = 1;
  // Keys of config.json to set, to JSON text, or, where that is empty, to leave out.
  std::map<std::string, std::string> config_changes;
};

inline std::string TinyConfigJson(const TinyCheckpointOptions& options) {
  const auto quoted = [](std::string_view text) {
    return std::string("\"").append(text).append("\"");
  };
  std::map<std::string, std::string> keys = {
      {"model_type", quoted(options.family)},
      {"architectures", "[" + quoted(ArchitectureOf(options.family)) + "]"},
      {"vocab_size", std::to_string(options.vocab_size)},
      {"hidden_size", std::to_string(options.hidden_size)},
      {"intermediate_size", std::to_string(options.intermediate_size)},
      {"num_hidden_layers", std::to_string(options.num_layers)},
      {"num_attention_heads", std::to_string(options.num_heads)},
      {"num_key_value_heads", std::to_string(options.num_kv_heads)},
      {"max_position_embeddings", std::to_string(options.max_positions)},
      {"eos_token_id", std::to_string(options.eos_token_id)},
      {"tie_word_embeddings", options.tie_word_embeddings ? "true" : "false"},
      {"rms_norm_eps", "1e-05"},
      {"rope_theta", "10000.0"},
      {"torch_dtype", quoted(NameOf(options.dtype))},
  };
  for (const auto& [key, value] : options.config_changes) keys[key] = value;
  std::string json = "{";
  for (const auto& [key, value] : keys) {
    if (!value.empty()) json += (json.size() > 1 ? ",\n\"" : "\n\"") + key + "\": " + value;
  }
  return json + "\n}\n";
}

// All tensors of the model that the sizes describe (config_changes are not looked at), with values
// that make its output vary.
inline std::vector<FileTensor> TinyTensors(const TinyCheckpointOptions& options) {
  std::vector<FileTensor> tensors;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    int64_t count = 1;
    for (int64_t extent : shape) count *= extent;
    std::vector<float> values(static_cast<size_t>(count));
    FillDummyTensor(name, options.seed, DType::kFloat32, count,
                    reinterpret_cast<std::byte*>(values.data()));
    const float scale = shape.size() == 2 ? 10.0f : 1.0f;  // a deviation of 0.2 for the matrices
    std::string bytes(values.size() * SizeOf(options.dtype), '\0');
    for (size_t i = 0; i < values.size(); ++i) {
      const float value = scale * values[i];
      const uint16_t half = FloatToBFloat16(value);
      if (options.dtype == DType::kFloat32) {
        std::memcpy(&bytes[4 * i], &value, 4);
      } else {
        std::memcpy(&bytes[2 * i], &half, 2);
      }
    }
    tensors.push_back({name, options.dtype == DType::kFloat32 ? "F32" : "BF16", std::move(shape),
                       std::move(bytes)});
  };
  const int64_t width = options.hidden_size, inner = options.intermediate_size;
  const int64_t head_dim = width / options.num_heads;
  add("model.embed_tokens.weight", {options.vocab_size, width});
  for (int layer = 0; layer < options.num_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    add(prefix + "input_layernorm.weight", {width});
    add(prefix + "self_attn.q_proj.weight", {options.num_heads * head_dim, width});
    add(prefix + "self_attn.k_proj.weight", {options.num_kv_heads * head_dim, width});
    add(prefix + "self_attn.v_proj.weight", {options.num_kv_heads * head_dim, width});
    add(prefix + "self_attn.o_proj.weight", {width, options.num_heads * head_dim});
    if (options.family == "diffllama") {
      for (const char* which : {"q1", "k1", "q2", "k2"})
        add(prefix + "self_attn.lambda_" + which, {head_dim});
    }
    add(prefix + "post_attention_layernorm.weight", {width});
    add(prefix + "mlp.gate_proj.weight", {inner, width});
    add(prefix + "mlp.up_proj.weight", {inner, width});
    add(prefix + "mlp.down_proj.weight", {width, inner});
  }
  add("model.norm.weight", {width});
  if (!options.tie_word_embeddings) add("lm_head.weight", {options.vocab_size, width});
  return tensors;
}

// A model directory with config.json, generation_config.json and model.safetensors (no tokenizer).
class TinyCheckpoint {
 public:
  explicit TinyCheckpoint(const TinyCheckpointOptions& options = {}) {
    Write("config.json", TinyConfigJson(options));
    Write("generation_config.json",
          "{\"eos_token_id\": " + std::to_string(options.eos_token_id) + "}\n");
    Write("model.safetensors", SafetensorsBytes(TinyTensors(options)));
  }
  std::string dir() const { return directory_.path().string(); }
  // Puts a file in the directory, in place of one with that name.
  void Write(const std::string& name, std::string_view bytes) const {
    WriteFile(directory_.path() / name, bytes);
  }
  void Remove(const std::string& name) const { std::filesystem::remove(directory_.path() / name); }

 private:
  TemporaryDirectory directory_;
};

}  // namespace diffserve
