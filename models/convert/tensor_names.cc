// SPDX-License-Identifier: Apache-2.0
#include "models/convert/tensor_names.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <tuple>

#include "kernels/base/refusal.h"
#include "models/weights.h"

namespace diffserve {
namespace {

constexpr size_t kMaxShownNames = 3;  // per error

// One name of the model's tensors (weight_table.h, which says whether a model has them) and the
// accepted names of its source: MODULE.NAME with one entry of each list ("a|b"; an empty MODULE:
// only NAME). A target "a+b" is a fused source: the rows of a, then those of b.
struct NameRule {
  const char* target;
  const char* modules;
  const char* names;
  const char* suffixes;  // an empty suffix: the name ends there
};

constexpr char kAttention[] = "|self_attn|attn|attention|mixer";
constexpr char kMlp[] = "mlp|ffn|feed_forward";
constexpr char kLinear[] = "weight|bias";
constexpr char kScale[] = "scale";  // of a norm: the target's weight

// Names below a layer, in the order of the converted checkpoint. fc1, gate and fc2 are those of
// unilm's YOCO, where fc1 goes through the activation. In a diff-mlx MLP, which has gate, up and
// down, gate does.
constexpr NameRule kLayerRules[] = {
    {"input_layernorm", "", "input_layernorm|attention_norm|self_attn_layer_norm|mixer_layer_norm",
     "weight"},
    {"input_layernorm", "", "norm_attn", kScale},
    {"self_attn.q_proj", kAttention, "q_proj|wq", kLinear},
    {"self_attn.k_proj", kAttention, "k_proj|wk", kLinear},
    {"self_attn.v_proj", kAttention, "v_proj|wv", kLinear},
    {"self_attn.q_proj+self_attn.k_proj+self_attn.v_proj", kAttention, "qkv_proj|wqkv", kLinear},
    {"self_attn.o_proj", kAttention, "out_proj|o_proj|wo", kLinear},
    {"self_attn.lambda_q1", kAttention, "lambda_q1", ""},
    {"self_attn.lambda_k1", kAttention, "lambda_k1", ""},
    {"self_attn.lambda_q2", kAttention, "lambda_q2", ""},
    {"self_attn.lambda_k2", kAttention, "lambda_k2", ""},
    {"self_attn.lambda_proj", kAttention, "lambda_proj", "weight"},
    {"self_attn.subln", kAttention, "subln", "weight"},
    {"self_attn.subln", kAttention, "subln", kScale},
    {"post_attention_layernorm", "", "post_attention_layernorm|ffn_norm|final_layer_norm",
     "weight"},
    {"post_attention_layernorm", "", "norm_mlp", kScale},
    {"mlp.gate_proj", kMlp, "gate_proj|w1", kLinear},
    {"mlp.gate_proj", "ffn", "fc1", kLinear},
    {"mlp.gate_proj", "mlp", "gate", kLinear},
    {"mlp.up_proj", kMlp, "up_proj|w3", kLinear},
    {"mlp.up_proj", "ffn", "gate", kLinear},
    {"mlp.up_proj", "mlp", "up", kLinear},
    {"mlp.gate_proj+mlp.up_proj", kMlp, "gate_up_proj|w13", kLinear},
    {"mlp.act_fn", "mlp", "act_fn", kLinear},
    {"mlp.down_proj", kMlp, "down_proj|w2", kLinear},
    {"mlp.down_proj", "ffn", "fc2", kLinear},
    {"mlp.down_proj", "mlp", "down", kLinear},
};
// Names outside the layers; they may be below any module that holds the layers.
constexpr NameRule kOuterRules[] = {
    {"model.embed_tokens", "", "embed_tokens|tok_embeddings|tok_embed", "weight"},
    {"model.norm", "", "norm|layer_norm", "weight"},
    {"model.norm", "", "final_norm", kScale},
    {"lm_head", "", "lm_head|output|output_projection", "weight"},
};
// Frequencies of the rotary embedding, which follow from the config.
constexpr std::string_view kUnneeded[] = {"inv_freq", "rope.freqs"};
constexpr std::string_view kOptimizer = "opt.";  // prefix of the optimizer state's names

std::string_view TargetSuffix(std::string_view suffix) {
  return suffix == kScale ? std::string_view("weight") : suffix;
}

std::vector<std::string_view> Split(std::string_view list, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = list.find(separator);
    parts.push_back(list.substr(0, end));
    if (end == std::string_view::npos) return parts;
    list.remove_prefix(end + 1);
  }
}

// The rest of `name` after `part` and a dot; nullopt if `name` does not start with them.
std::optional<std::string_view> After(std::string_view name, std::string_view part) {
  if (part.empty()) return name;
  if (!name.starts_with(part)) return std::nullopt;
  name.remove_prefix(part.size());
  if (name.empty()) return name;
  if (name[0] != '.' || name.size() == 1) return std::nullopt;
  return name.substr(1);
}

// A source's name in parts: OUTER.LAYERS.N.REST within a layer, else the whole name is REST.
struct SourceName {
  std::string_view outer;  // the text before the layer's number: "model.layers"
  std::optional<int> layer;
  std::string_view rest;
};

SourceName Parse(std::string_view name) {
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    int number = 0;
    const auto [stop, error] = std::from_chars(name.data() + begin, name.data() + end, number);
    if (error == std::errc() && stop == name.data() + end && number >= 0) {
      return {name.substr(0, begin == 0 ? 0 : begin - 1), number,
              name.substr(std::min(end + 1, name.size()))};
    }
    begin = end + 1;
  }
  return {{}, std::nullopt, name};
}

// The target's suffix, if the rule takes the name.
std::optional<std::string_view> Match(const NameRule& rule, std::string_view rest) {
  for (std::string_view module : Split(rule.modules, '|')) {
    const std::optional<std::string_view> inner = After(rest, module);
    if (!inner) continue;
    for (std::string_view name : Split(rule.names, '|')) {
      const std::optional<std::string_view> found = After(*inner, name);
      if (!found) continue;
      for (std::string_view suffix : Split(rule.suffixes, '|')) {
        if (*found == suffix) return TargetSuffix(suffix);
      }
    }
  }
  return std::nullopt;
}

std::string ShapeString(const std::vector<int64_t>& shape) {
  return TensorView{nullptr, DType::kFloat32, shape}.ShapeString();
}

// The sort key: before all layers, in one, or after them; then the layer and the position in it.
using Place = std::tuple<int, int, size_t, std::string>;

class Planner {
 public:
  Planner(const ModelConfig& config, const std::string& where)
      : config_(config),
        where_(where),
        any_spelling_(config.family.starts_with("diff_transformer")) {
    for (const NamedShape& tensor : LayerTensors(config, 0))
      rows_.emplace(tensor.name, tensor.shape[0]);
    for (const NamedShape& tensor : ModelTensors(config)) own_names_.insert(tensor.name);
  }

  Result<TensorPlan> Plan(const std::vector<SourceTensor>& sources) {
    DS_RETURN_IF_ERROR(FindLayers(sources));
    for (const SourceTensor& source : sources) DS_RETURN_IF_ERROR(Add(source));
    if (!unknown_.empty()) return Unknown();
    for (auto& [place, tensor] : planned_) plan_.tensors.push_back(std::move(tensor));
    return std::move(plan_);
  }

 private:
  // All layers must be in one list.
  Status FindLayers(const std::vector<SourceTensor>& sources) {
    const SourceTensor* first = nullptr;
    for (const SourceTensor& source : sources) {
      const SourceName name = Parse(source.name);
      if (!name.layer || IsUnneeded(source.name)) continue;
      if (first == nullptr) {
        first = &source;
        layers_ = name.outer;
      } else if (name.outer != layers_) {
        return NotAllowed(where_ + ": layers stand in two lists, in tensors " + first->name +
                              " and " + source.name,
                          "one list");
      }
    }
    return Status();
  }

  static bool IsUnneeded(std::string_view name) {
    return name.starts_with(kOptimizer) ||
           std::ranges::any_of(kUnneeded, [name](std::string_view end) {
             return name == end ||
                    (name.ends_with(end) && name[name.size() - end.size() - 1] == '.');
           });
  }

  Status Add(const SourceTensor& source) {
    if (IsUnneeded(source.name)) {
      plan_.dropped.push_back(source.name);
      return Status();
    }
    const SourceName name = Parse(source.name);
    const bool in_layer = name.layer && *name.layer < config_.num_layers;
    const std::span<const NameRule> rules = name.layer ? std::span<const NameRule>(kLayerRules)
                                                       : kOuterRules;
    for (size_t i = 0; i < rules.size() && (in_layer || !name.layer); ++i) {
      const std::optional<std::string_view> suffix = Match(
          rules[i], name.layer ? name.rest : WithoutModules(name.rest));
      if (!suffix) continue;
      if (name.layer && !IsNeeded(rules[i], *suffix)) break;
      const std::vector<std::string_view> targets = Split(rules[i].target, '+');
      if (!any_spelling_ &&
          (targets.size() > 1 || TargetName(name.layer, targets[0], *suffix) != source.name))
        break;
      return AddParts(source, name.layer, targets, *suffix);
    }
    if (own_names_.contains(source.name)) return AddOwn(source, name.layer);
    unknown_.push_back(source.name);
    return Status();
  }

  // A tensor with the family's own name, for which no rule has another. Outside the layers that is
  // the final norm.
  Status AddOwn(const SourceTensor& source, std::optional<int> layer) {
    if (!source.entry.is_float) return NoFloats(source);
    const size_t index = layer ? std::size(kLayerRules) : IndexOf(kOuterRules, "model.norm");
    const Place place = {layer ? 0 : 1, layer.value_or(-1), index, source.name};
    planned_.emplace(place, PlannedTensor{source.name, source.entry.shape, &source, 0});
    return Status();
  }

  static Status NoFloats(const SourceTensor& source) {
    return NotAllowed(
        source.file->path() + ": tensor " + source.name + " has dtype " + source.entry.dtype_name,
        "F32, BF16, F16");
  }

  // A name outside the layers, without the modules that also hold the layers: "model.norm.weight"
  // beside "model.layers.0..." becomes "norm.weight".
  std::string_view WithoutModules(std::string_view name) const {
    const size_t end = layers_.rfind('.');
    const std::string_view holders = end == std::string_view::npos ? std::string_view("model")
                                                                   : layers_.substr(0, end);
    for (std::string_view module : Split(holders, '.')) {
      if (name.starts_with(module) && name.substr(module.size()).starts_with('.'))
        name.remove_prefix(module.size() + 1);
    }
    return name;
  }

  std::string TargetName(std::optional<int> layer, std::string_view target,
                         std::string_view suffix) const {
    std::string name = layer ? "model.layers." + std::to_string(*layer) + "." : "";
    name += target == "self_attn.o_proj" ? "self_attn." + config_.names.attention_out
                                         : std::string(target);
    return suffix.empty() ? name : name.append(".").append(suffix);
  }

  // Whether the layers have the tensor that a rule names.
  bool IsNeeded(const NameRule& rule, std::string_view suffix) const {
    return std::ranges::all_of(Split(rule.target, '+'), [&](std::string_view target) {
      return rows_.contains(TargetName(0, target, suffix));
    });
  }
  int64_t PartRows(std::string_view target, std::string_view suffix) const {
    return rows_.at(TargetName(0, target, suffix));
  }

  static size_t IndexOf(std::span<const NameRule> rules, std::string_view target) {
    const auto rule = std::ranges::find(
        rules, target, [](const NameRule& r) { return std::string_view(r.target); });
    return static_cast<size_t>(rule - rules.begin());
  }
  // The sort key of a target: the first rule with its name counts.
  static Place PlaceOf(std::optional<int> layer, std::string_view target, std::string_view suffix) {
    const size_t index = IndexOf(layer ? std::span<const NameRule>(kLayerRules) : kOuterRules,
                                 target);
    // The embedding comes first; everything else outside the layers comes last.
    const int group = layer || index == 0 ? 0 : 1;
    return {group, layer.value_or(-1), index, suffix == "bias" ? "1" : "0"};
  }

  Status AddParts(const SourceTensor& source, std::optional<int> layer,
                  const std::vector<std::string_view>& targets, std::string_view suffix) {
    const std::vector<int64_t>& shape = source.entry.shape;
    if (!source.entry.is_float) return NoFloats(source);
    if (targets.size() > 1) {
      int64_t rows = 0;
      std::string parts;
      for (std::string_view target : targets) {
        rows += PartRows(target, suffix);
        parts += (parts.empty() ? "" : " + ") + std::to_string(PartRows(target, suffix));
      }
      if (shape.empty() || shape[0] != rows) {
        return NotAllowed(where_ + ": tensor " + source.name + " has shape " + ShapeString(shape),
                          parts + " rows from config.json");
      }
      ++plan_.num_divided;
    } else if (TargetName(layer, targets[0], suffix) != source.name) {
      ++plan_.num_renamed;
    }
    int64_t first_row = 0;
    for (std::string_view target : targets) {
      PlannedTensor tensor{TargetName(layer, target, suffix), shape, &source, first_row};
      if (targets.size() > 1) tensor.shape[0] = PartRows(target, suffix);
      first_row += targets.size() > 1 ? tensor.shape[0] : 0;
      const auto [other, is_new] = planned_.emplace(PlaceOf(layer, target, suffix), tensor);
      if (!is_new) {
        return NotAllowed(where_ + ": tensors " + other->second.source->name + " and " +
                              source.name + " are both " + tensor.name,
                          "one of them");
      }
    }
    return Status();
  }

  Status Unknown() const {
    std::string found;
    for (size_t i = 0; i < std::min(unknown_.size(), kMaxShownNames); ++i)
      found += (i > 0 ? ", " : "") + unknown_[i];
    if (unknown_.size() > kMaxShownNames)
      found += " and " + std::to_string(unknown_.size() - kMaxShownNames) + " more";
    return NotAllowed(where_ + ": has no place in the " + config_.family +
                          " model of config.json with " + std::to_string(config_.num_layers) +
                          " layers for tensor " + found,
                      Accepted());
  }

  std::string Accepted() const {
    std::string text;
    const auto append = [&](std::span<const NameRule> rules, const NameRule& rule,
                            const std::string& before) {
      const std::string_view target = rule.target;
      const bool is_first = &rules[IndexOf(rules, target)] == &rule;
      if (!any_spelling_ && (!is_first || target.find('+') != std::string_view::npos)) return;
      text += (text.empty() ? "" : ", ") + before;
      if (!any_spelling_) {
        text += target;
        return;
      }
      const std::string_view modules = rule.modules;
      if (modules == kAttention) text += "[" + std::string(modules.substr(1)) + ".]";
      if (modules != kAttention && !modules.empty()) text += "(" + std::string(modules) + ").";
      text += rule.names;
      if (rule.suffixes == std::string_view(kScale)) text.append(".").append(kScale);
    };
    for (const NameRule& rule : kOuterRules) append(kOuterRules, rule, "");
    for (const NameRule& rule : kLayerRules) {
      const auto is_needed = [&](std::string_view suffix) {
        return IsNeeded(rule, TargetSuffix(suffix));
      };
      if (std::ranges::any_of(Split(rule.suffixes, '|'), is_needed))
        append(kLayerRules, rule, text.find("N.") == std::string::npos ? "and in layers.N. " : "");
    }
    return text;
  }

  const ModelConfig& config_;
  const std::string& where_;
  const bool any_spelling_;
  std::map<std::string, int64_t> rows_;  // of layer 0's tensors
  std::set<std::string> own_names_;      // of all tensors outside the tables
  std::string_view layers_;              // the text before the layers' numbers
  std::map<Place, PlannedTensor> planned_;
  std::vector<std::string> unknown_;
  TensorPlan plan_;
};

}  // namespace

Result<TensorPlan> PlanTensors(const ModelConfig& config, const std::vector<SourceTensor>& sources,
                               const std::string& where) {
  return Planner(config, where).Plan(sources);
}

}  // namespace diffserve
