// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/models/checkpoint_writer.h"

#include <cstring>
#include <utility>

namespace diffserve {
namespace {

// config.json's "architectures" for a "model_type".
std::string ArchitectureOf(const std::string& model_type) {
  if (model_type == "llama") return "LlamaForCausalLM";
  if (model_type == "diff_transformer") return "DiffTransformerForCausalLM";
  if (model_type == "diff_transformer_v2") return "DiffTransformerV2ForCausalLM";
  if (model_type == "motif") return "MotifForCausalLM";
  if (model_type == "phi4flash") return "Phi4FlashForCausalLM";
  return "DiffLlamaForCausalLM";
}

}  // namespace

std::string SafetensorsHeaderBytes(const std::string& json) {
  const uint64_t length = json.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + json;
}

std::string SafetensorsBytes(const std::vector<FileTensor>& tensors) {
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

std::string TinyConfigJson(const TinyCheckpointOptions& options) {
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

std::vector<FileTensor> TinyTensors(const TinyCheckpointOptions& options) {
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

TinyCheckpoint::TinyCheckpoint(const TinyCheckpointOptions& options) {
  Write("config.json", TinyConfigJson(options));
  Write("generation_config.json",
        "{\"eos_token_id\": " + std::to_string(options.eos_token_id) + "}\n");
  Write("model.safetensors", SafetensorsBytes(TinyTensors(options)));
}

void TinyCheckpoint::Write(const std::string& name, std::string_view bytes) const {
  WriteFile(directory_.path() / name, bytes);
}

}  // namespace diffserve
