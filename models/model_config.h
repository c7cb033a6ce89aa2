// SPDX-License-Identifier: Apache-2.0
// ModelConfig: the content of config.json and generation_config.json, checked and brought into one
// form for every family. load_config.h reads it.
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
  // q, k and v of a tensor that stacks them; empty if no tensor does.
  std::vector<int32_t> stacked = {};
};

enum class MlpKind {
  kSwiGlu,    // down(silu(gate(x)) * up(x))
  kPolyNorm,  // down(PN(gate(x)) * up(x)), with PN of rowwise.h: three weights and a bias
};

// Family-specific names of a layer's tensors, below "model.layers.L.".
struct TensorNames {
  std::string attention = "self_attn.";  // or any other mixer
  std::string lambdas = "self_attn.";    // lambda_q1 ..., subln
  std::string qkv;                       // one tensor for q, k and v; "": q_proj, k_proj, v_proj
  std::string attention_out = "o_proj";
  std::string gate_up;  // one tensor for both; "": gate_proj, up_proj
  std::string down = "down_proj";
  std::string final_norm = "model.norm";  // full name
};

enum class NormKind {
  kRmsNorm,    // for the layers' inputs and the final state: rowwise.h
  kLayerNorm,  // subtracts the mean; has a weight and a bias
};

// The mixer of a layer, which precedes its MLP.
enum class MixerKind {
  kAttention,
  kMamba,        // a convolution over the last tokens and a selective scan (kernels/mamba)
  kGatedMemory,  // W_out(silu(W_in x) * memory), with the memory of the same token's scan in an
                 // earlier layer
};

struct LayerConfig {
  MixerKind mixer = MixerKind::kAttention;
  // kAttention: tokens that a query sees, its own included; 0: all before it.
  int window = 0;
  // kAttention: index of the KV cache layer that it reads, among those with K and V.
  int kv = 0;
  // kAttention: reads an earlier layer's K and V; it has neither k_proj nor v_proj.
  bool shares_kv = false;
  // kMamba: index of its state, among the layers that have one.
  int state = 0;
  // kMamba: its scan's output, before the gate, is the memory of the kGatedMemory layers after it.
  bool makes_memory = false;

  bool writes_kv() const { return mixer == MixerKind::kAttention && !shares_kv; }
  bool has_state() const { return mixer == MixerKind::kMamba; }
};

// Mamba-1 (arXiv 2312.00752).
struct MambaSpec {
  int inner = 0;       // channels
  int state_dim = 0;   // per channel
  int conv_width = 0;  // tokens that the convolution sees
  int dt_rank = 0;

  // float32 numbers that a layer keeps per sequence: the convolution's, then the scan's.
  int64_t conv_floats() const { return int64_t{inner} * (conv_width - 1); }
  int64_t state_floats() const { return conv_floats() + int64_t{inner} * state_dim; }
};

struct ModelConfig {
  std::string family;  // "diffllama", "llama", ...
  // torch_dtype / dtype of config.json; float32 if absent.
  DType checkpoint_dtype = DType::kFloat32;

  int vocab_size = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_layers = 0;
  int max_positions = 0;  // max_position_embeddings
  NormKind norm = NormKind::kRmsNorm;
  float norm_eps = 1e-5f;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool attention_out_bias = false;
  bool mlp_bias = false;
  MlpKind mlp = MlpKind::kSwiGlu;

  std::vector<LayerConfig> layers;  // [num_layers]
  MambaSpec mamba;                  // for the kMamba layers
  DiffSpec attention;               // for the kAttention layers
  HeadOrder head_order;
  TensorNames names;
  RopeConfig rope;
  std::optional<PackedFormat> packed;  // linear layers are stored as kernels read them
  bool stores_fp8 = false;             // linear layers may be stored as fp8 codes and scales
  std::vector<float> lambda_init;      // [num_layers] for LambdaKind::kPerLayer, else empty

  // Tokens that end a text: generation_config.json's ids, else config.json's; AddEndOfText adds the
  // tokenizer's own.
  std::vector<int32_t> eos_token_ids;
  std::optional<int32_t> bos_token_id;
  // Defaults of generation_config.json or, without that file, of config.json; used when a request
  // does not set them.
  std::optional<float> default_temperature, default_top_p, default_min_p,
      default_repetition_penalty;
  std::optional<int> default_top_k, default_max_tokens;

  // The tokenizer's eos_token ends a text too. An id without a row in the model is ignored.
  void AddEndOfText(std::optional<int32_t> id);

  int num_kv_layers() const;     // layers with their own K and V
  int num_state_layers() const;  // layers with a state
  // float32 numbers that all layers keep per sequence besides its pages; 0: none.
  int64_t state_floats() const { return num_state_layers() * mamba.state_floats(); }
  // Index of the first of these numbers that belongs to `layer`, which has a state.
  int64_t StateBegin(int layer) const {
    return layers[static_cast<size_t>(layer)].state * mamba.state_floats();
  }
  // The last layer that keeps anything of a token. After it, only tokens whose logits are wanted
  // need to be computed.
  int last_keeping_layer() const;
};

}  // namespace diffserve
