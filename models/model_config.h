// ModelConfig: what config.json and generation_config.json say, checked and brought into one form
// for every family.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/attention/diff_spec.h"
#include "kernels/base/dtype.h"
#include "kernels/base/status.h"
#include "models/packed_format.h"
#include "models/rope_config.h"

namespace diffserve {

// How a family's physical heads map to the canonical order (diff_spec.h): canonical head i is
// physical head order[i].
struct HeadOrder {
  std::vector<int32_t> q;  // num_q1_heads + num_q2_heads entries
  std::vector<int32_t> k;  // num_kv_groups * k_maps entries
  std::vector<int32_t> v;  // num_kv_groups * v_dim / head_dim entries, in units of head_dim
};

enum class MlpKind {
  kSwiGlu,    // down(silu(gate(x)) * up(x))
  kPolyNorm,  // down(PN(gate(x)) * up(x)), PN of rowwise.h with a weight of three and a bias
};

struct ModelConfig {
  std::string family;                        // "diffllama", "llama", ...
  DType checkpoint_dtype = DType::kFloat32;  // torch_dtype / dtype of config.json; float32 if
                                             // absent

  int vocab_size = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_layers = 0;
  int max_positions = 0;  // max_position_embeddings
  float rms_norm_eps = 1e-5f;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool attention_out_bias = false;
  bool mlp_bias = false;
  MlpKind mlp = MlpKind::kSwiGlu;

  DiffSpec attention;
  HeadOrder head_order;
  std::string attention_out_name = "o_proj";  // of the checkpoint's tensor
  RopeConfig rope;
  std::optional<PackedFormat> packed;  // linear layers are stored as kernels read them
  std::vector<float> lambda_init;      // [num_layers] for LambdaKind::kPerLayer, else empty

  std::vector<int32_t> eos_token_ids;  // generation_config.json, else config.json; all of them
  std::optional<int32_t> bos_token_id;
  // generation_config.json's sampling defaults, used when a request is silent.
  std::optional<float> default_temperature, default_top_p, default_repetition_penalty;
  std::optional<int> default_top_k;
};

// Reads DIR/config.json and DIR/generation_config.json (if there). Every refusal is one line: file,
// key, found, allowed.
Result<ModelConfig> LoadModelConfig(const std::string& model_dir);
// The same with `json` in the place of DIR/config.json.
Result<ModelConfig> LoadModelConfig(const std::string& model_dir, ConfigReader& json);

}  // namespace diffserve
