// SPDX-License-Identifier: Apache-2.0
#include "models/convert/diff_mlx.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/base/refusal.h"
#include "models/config_reader.h"

namespace diffserve {
namespace {

// Limits of a `diff_transformer` model.
constexpr int kMaxVocab = 4 << 20;
constexpr int kMaxWidth = 1 << 20;
constexpr int kMaxLayers = 1024;
constexpr int kMaxPositions = 16 << 20;
constexpr int kMaxHeads = 2 * 4096;
constexpr int kMaxHeadDim = 1024;
constexpr double kMaxRopeBase = 1e12;
constexpr double kNormEps = 1e-5;  // of the norm of each head, whatever rms_norm_eps is

constexpr std::array<std::string_view, 11> kModelKeys = {
    "dim",        "n_layers",         "n_heads_vanilla", "qk_head_dim",
    "vocab_size", "mlp_intermediate", "block_size",      "rope_base",
    "rms_eps",    "tie_embeddings",   "amp_dtype"};

// The shortest text that parses as `number`.
std::string JsonNumber(double number) {
  std::array<char, 32> text;
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), number);
  return {text.data(), end};
}

void RefuseOtherKeys(ConfigReader& model) {
  std::string known;
  for (std::string_view key : kModelKeys) known += (known.empty() ? "" : ", ") + std::string(key);
  for (const std::string& key : model.Keys()) {
    if (std::ranges::find(kModelKeys, key) == kModelKeys.end())
      model.Refuse(key, "no key but " + known);
  }
}

// The members of the new config.json, from the old "model" object. Problems are recorded in it.
// Keys that only old checkpoints lack get diff-mlx's defaults.
std::vector<std::pair<std::string, std::string>> Translate(ConfigReader& model, DType stored) {
  RefuseOtherKeys(model);
  const int heads = model.Int("n_heads_vanilla", std::nullopt, 2, kMaxHeads);
  if (heads % 2 != 0)
    model.Refuse("n_heads_vanilla", "an even number: two make a differential head");
  const int head_dim = model.Int("qk_head_dim", std::nullopt, 2, kMaxHeadDim);
  if (head_dim % 2 != 0) model.Refuse("qk_head_dim", "an even number");
  const int width = model.Int("dim", std::nullopt, 1, kMaxWidth);
  if (width != heads * head_dim)
    model.Refuse("dim", "n_heads_vanilla * qk_head_dim = " + std::to_string(heads * head_dim));
  const int layers = model.Int("n_layers", std::nullopt, 1, kMaxLayers);
  const int vocab = model.Int("vocab_size", std::nullopt, 1, kMaxVocab);
  const int inner = model.Int("mlp_intermediate", std::nullopt, 1, kMaxWidth);
  const int positions = model.Int("block_size", std::nullopt, 1, kMaxPositions);
  const double rope_base = model.Number("rope_base", 10000.0, 1, kMaxRopeBase);
  // diff-mlx has one value for all norms.
  if (static_cast<float>(model.Number("rms_eps", kNormEps, 0, 1)) != static_cast<float>(kNormEps))
    model.Refuse("rms_eps", JsonNumber(kNormEps) + ", which the norm of each head has here");
  if (!model.Bool("tie_embeddings", true))
    model.Refuse("tie_embeddings", "true, because diff-mlx has no output matrix of its own");
  // The type that products are rounded to in training; it changes no weight.
  const std::string amp_dtype = model.String("amp_dtype", "float32");
  if (amp_dtype != "float32" && amp_dtype != "bfloat16")
    model.Refuse("amp_dtype", "float32 or bfloat16");

  const std::string diff_heads = std::to_string(heads / 2);
  return {{"architectures", "[\"DiffTransformerForCausalLM\"]"},
          {"model_type", "\"diff_transformer\""},
          {"vocab_size", std::to_string(vocab)},
          {"hidden_size", std::to_string(width)},
          {"intermediate_size", std::to_string(inner)},
          {"num_hidden_layers", std::to_string(layers)},
          {"num_attention_heads", diff_heads},
          {"num_key_value_heads", diff_heads},
          {"head_dim", std::to_string(head_dim)},
          {"max_position_embeddings", std::to_string(positions)},
          {"hidden_act", "\"silu\""},
          {"lambda_init", "\"exp\""},
          {"rms_norm_eps", JsonNumber(kNormEps)},
          {"rope_theta", JsonNumber(rope_base)},
          {"tie_word_embeddings", "true"},
          {"torch_dtype", "\"" + std::string(NameOf(stored)) + "\""}};
}

std::string JsonObjectOf(const std::vector<std::pair<std::string, std::string>>& members) {
  std::string text;
  for (const auto& [key, value] : members)
    text.append(text.empty() ? "{\n  \"" : ",\n  \"").append(key).append("\": ").append(value);
  return text + "\n}\n";
}

// The weight with that name; older checkpoints lack the prefix "model.".
const SourceTensor* Find(const std::vector<SourceTensor>& tensors, std::string_view name) {
  const auto found = std::ranges::find_if(tensors, [name](const SourceTensor& tensor) {
    return tensor.name == name || tensor.name == "model." + std::string(name);
  });
  return found == tensors.end() ? nullptr : &*found;
}

// Plain attention has the same config.json, but neither lambda nor a norm of each head.
bool IsVanilla(const std::vector<SourceTensor>& tensors) {
  constexpr std::array<std::string_view, 5> kOfDiff = {"lambda_q1", "lambda_k1", "lambda_q2",
                                                       "lambda_k2", "subln.scale"};
  return std::ranges::none_of(tensors, [&](const SourceTensor& tensor) {
    return !tensor.name.starts_with("opt.") &&
           std::ranges::any_of(kOfDiff,
                               [&](std::string_view end) { return tensor.name.ends_with(end); });
  });
}

}  // namespace

Result<std::string> ServedConfigText(const std::string& text, const SourceDirectory& source) {
  const std::string path = (std::filesystem::path(source.path()) / "config.json").string();
  Result<ConfigReader> json = ConfigReader::Parse(text, path);
  if (!json.ok()) return json.status();
  if (json->Has("model_type")) return text;
  std::optional<ConfigReader> model = json->Object("model");
  if (!model) return text;

  const SourceTensor* embedding = Find(source.tensors(), "tok_embed.weight");
  const auto members = Translate(*model,
                                 embedding != nullptr ? embedding->entry.dtype : DType::kFloat32);
  DS_RETURN_IF_ERROR(json->status());
  if (embedding == nullptr) {
    return NotAllowed(source.path() + ": tensor model.tok_embed.weight is missing",
                      "a file with it beside a config.json of diff-mlx");
  }
  if (IsVanilla(source.tensors())) {
    return NotAllowed(source.path() +
                          ": holds the vanilla variant of diff-mlx (no tensor lambda_q1): plain "
                          "attention with interleaved rotary embedding cannot be served",
                      "the diff variant");
  }
  return JsonObjectOf(members);
}

}  // namespace diffserve
