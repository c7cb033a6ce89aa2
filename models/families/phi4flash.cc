// SPDX-License-Identifier: Apache-2.0
// Phi-4-mini-flash (SambaY, arXiv 2507.06607), a hybrid. The first half of its layers alternates
// Mamba and differential attention over a window. Then comes one more Mamba layer, whose scan's
// output is the memory of the gated memory units after it. Then one layer of full attention, whose
// K and V the attention of all later layers reads. Nothing is rotated. Heads are paired side by
// side, as in diff_transformer.cc: output head i is query head 2i minus lambda times query head 2i
// + 1. Key heads 2j and 2j + 1 are K1 and K2 of group j, value heads 2j and 2j + 1 side by side its
// V.
#include "kernels/mamba/causal_conv.h"
#include "kernels/mamba/selective_scan.h"
#include "models/families/family.h"
#include "models/families/heads.h"

namespace diffserve {
namespace {

constexpr float kPhi4FlashSubNormEps = 1e-5f;  // a constant in the authors' code
constexpr int kMaxWindow = 1 << 24;
constexpr int kMaxExpand = 8;

bool IsWindowed(const ModelConfig& config, int layer) {
  return layer % 2 == 1 && layer < config.num_layers / 2;
}

// A number for all windowed layers, or a list with one entry per layer, null for one without a
// window.
int ReadWindow(ConfigReader& json, const ModelConfig& config) {
  if (!json.IsList("sliding_window"))
    return json.Int("sliding_window", std::nullopt, 1, kMaxWindow);
  const std::vector<std::optional<int>> windows = json.IntsOrNulls("sliding_window", 1, kMaxWindow);
  bool fits = std::ssize(windows) == config.num_layers;
  const std::optional<int> window = fits ? windows[1] : std::nullopt;
  for (int l = 0; fits && l < config.num_layers; ++l)
    fits = windows[static_cast<size_t>(l)] == (IsWindowed(config, l) ? window : std::nullopt);
  if (!fits || !window) {
    json.Refuse("sliding_window",
                "a number, or a list of num_hidden_layers with the same number for each odd layer "
                "of the first half and null for the others");
  }
  return window.value_or(1);
}

void SetLayers(ConfigReader& json, ModelConfig& config) {
  if (config.num_layers % 4 != 0) {
    json.Refuse("num_hidden_layers", "a multiple of 4");
    return;
  }
  if (json.Int("mb_per_layer", 2, 0, 1 << 20) != 2) json.Refuse("mb_per_layer", "2");
  if (json.Has("layer_types"))
    json.Refuse("layer_types", "none: num_hidden_layers says what each layer is");
  const int window = ReadWindow(json, config);
  const int half = config.num_layers / 2;
  for (int l = 0; l < config.num_layers; ++l) {
    LayerConfig& layer = config.layers.emplace_back();
    if (l % 2 == 0) {
      layer.mixer = l <= half ? MixerKind::kMamba : MixerKind::kGatedMemory;
      layer.makes_memory = l == half;
      layer.state = l / 2;
    } else {
      layer.window = IsWindowed(config, l) ? window : 0;
      layer.kv = std::min(l, half + 1) / 2;
      layer.shares_kv = l > half + 1;
    }
  }
}

void ReadMamba(ConfigReader& json, ModelConfig& config) {
  MambaSpec& mamba = config.mamba;
  mamba.inner = json.Int("mamba_expand", 2, 1, kMaxExpand) * config.hidden_size;
  mamba.state_dim = json.Int("mamba_d_state", 16, 1, kScanStatesMax);
  mamba.conv_width = json.Int("mamba_d_conv", 4, kConvWidthMin, kConvWidthMax);
  // The authors' code does this whatever these keys say, so another value is a mistake.
  mamba.dt_rank = (config.hidden_size + 15) / 16;
  const bool is_auto = json.IsString("mamba_dt_rank") &&
                       json.String("mamba_dt_rank", std::nullopt) == "auto";
  if (!is_auto && json.Has("mamba_dt_rank") &&
      (json.IsString("mamba_dt_rank") ||
       json.Int("mamba_dt_rank", std::nullopt, 1, 1 << 20) != mamba.dt_rank)) {
    json.Refuse("mamba_dt_rank", "\"auto\" or hidden_size / 16, rounded up");
  }
  if (!json.Bool("mamba_conv_bias", true)) json.Refuse("mamba_conv_bias", "true");
  for (const char* key : {"mamba_proj_bias", "mlp_bias", "lm_head_bias"}) {
    if (json.Bool(key, false)) json.Refuse(key, "false");
  }
}

void SetStackedOrder(const HeadCounts& heads, HeadOrder& order) {
  order.stacked = order.q;
  for (int32_t k : order.k) order.stacked.push_back(heads.num_q + k);
  for (int32_t v : order.v) order.stacked.push_back(heads.num_q + heads.num_kv + v);
}

void ConfigurePhi4Flash(ConfigReader& json, ModelConfig& config) {
  const HeadCounts heads = ReadHeads(json, config.hidden_size, 1);
  CheckGrouping(json, heads);
  CheckPairs(json, heads);
  if (heads.num_q * heads.head_dim != config.hidden_size)
    json.Refuse("num_attention_heads", "heads that are as wide as hidden_size together");
  CheckActivation(json, "silu");
  config.tie_word_embeddings = json.Bool("tie_word_embeddings", true);
  config.norm = NormKind::kLayerNorm;
  config.norm_eps = static_cast<float>(json.Number("layer_norm_eps", 1e-5, 0, 1));
  config.rope.style = RopeStyle::kNone;
  config.qkv_bias = config.attention_out_bias = true;
  config.names = {.attention = "attn.",
                  .lambdas = "attn.inner_cross_attn.",
                  .qkv = "Wqkv",
                  .attention_out = "out_proj",
                  .gate_up = "fc1",
                  .down = "fc2",
                  .final_norm = "model.final_layernorm"};
  SetLayers(json, config);
  ReadMamba(json, config);

  DiffSpec& attention = config.attention;
  attention.num_q1_heads = heads.num_q / 2;
  attention.num_q2_heads = heads.num_q / 2;
  attention.num_kv_groups = heads.num_kv / 2;
  attention.k_maps = 2;
  attention.head_dim = heads.head_dim;
  attention.v_dim = 2 * heads.head_dim;
  attention.lambda_kind = LambdaKind::kPerLayer;
  attention.sub_norm = SubNorm::kAffine;
  attention.sub_norm_eps = kPhi4FlashSubNormEps;

  for (int map : {0, 1}) {
    const std::vector<int32_t> q = Strided(map, 2, heads.num_q / 2);
    const std::vector<int32_t> k = Strided(map, 2, heads.num_kv / 2);
    config.head_order.q.insert(config.head_order.q.end(), q.begin(), q.end());
    config.head_order.k.insert(config.head_order.k.end(), k.begin(), k.end());
  }
  config.head_order.v = Strided(0, 1, heads.num_kv);
  SetStackedOrder(heads, config.head_order);
  // Over all layers, also those without attention.
  config.lambda_init = ExponentialLambdaInit(0, config.num_layers);
}

}  // namespace

const Family kPhi4FlashFamily = {.name = "phi4flash",
                                 .model_type = "phi4flash",
                                 .architecture = "Phi4FlashForCausalLM",
                                 .default_max_positions = 4096,
                                 .configure = ConfigurePhi4Flash,
                                 .has_windows = true};

}  // namespace diffserve
