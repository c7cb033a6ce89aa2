// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/models/unilm_state_dict.h"

namespace diffserve {

UnilmModel Unilm(bool second_version) {
  constexpr int64_t kHidden = 32, kInner = 40, kVocab = 96, kLayers = 2;
  constexpr int64_t kHeads = 4, kKvHeads = 2, kHeadDim = 4;  // 2 * 4 query heads of 4
  UnilmModel model;
  model.config =
      std::string(R"({"model_type": "diff_transformer)") + (second_version ? "_v2" : "") +
      R"(", "hidden_size": 32, "intermediate_size": 40, "vocab_size": 96, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
         "max_position_embeddings": 64, "torch_dtype": "float32"})";
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    int64_t count = 1;
    for (int64_t extent : shape) count *= extent;
    FileTensor tensor{name, "F32", shape, std::string(static_cast<size_t>(count) * 4, '\0')};
    FillDummyTensor(name, 3, DType::kFloat32, count,
                    reinterpret_cast<std::byte*>(tensor.bytes.data()));
    model.tensors.push_back(std::move(tensor));
  };
  const int64_t k_width = (second_version ? 1 : 2) * kKvHeads * kHeadDim,
                v_dim = (second_version ? 1 : 2) * kHeadDim;
  add("model.embed_tokens.weight", {kVocab, kHidden});
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    add(at + "input_layernorm.weight", {kHidden});
    add(at + "self_attn.q_proj.weight", {2 * kHeads * kHeadDim, kHidden});
    add(at + "self_attn.k_proj.weight", {k_width, kHidden});
    add(at + "self_attn.v_proj.weight", {kKvHeads * v_dim, kHidden});
    add(at + (second_version ? "self_attn.o_proj.weight" : "self_attn.out_proj.weight"),
        {kHidden, kHeads * v_dim});
    for (const char* name : {"q1", "k1", "q2", "k2"}) {
      if (!second_version) add(at + "self_attn.lambda_" + name, {kHeadDim});
    }
    if (second_version) add(at + "self_attn.lambda_proj.weight", {kHeads, kHidden});
    if (!second_version) add(at + "self_attn.subln.weight", {v_dim});
    add(at + "post_attention_layernorm.weight", {kHidden});
    add(at + "mlp.gate_proj.weight", {kInner, kHidden});
    add(at + "mlp.up_proj.weight", {kInner, kHidden});
    add(at + "mlp.down_proj.weight", {kHidden, kInner});
  }
  add("model.norm.weight", {kHidden});
  add("lm_head.weight", {kVocab, kHidden});
  return model;
}

std::vector<FileTensor> Renamed(std::vector<FileTensor> tensors, const Replacements& replacements) {
  for (FileTensor& tensor : tensors) {
    for (const auto& [from, to] : replacements) {
      const size_t at = tensor.name.find(from);
      if (at != std::string::npos) tensor.name.replace(at, from.size(), to);
    }
  }
  return tensors;
}

std::vector<FileTensor> Fused(const std::vector<FileTensor>& tensors,
                              const std::vector<std::string>& parts, const std::string& name) {
  std::vector<FileTensor> fused;
  for (const FileTensor& tensor : tensors) {
    size_t part = 0;
    while (part < parts.size() && !tensor.name.ends_with(parts[part] + ".weight")) ++part;
    if (part == 0) {
      fused.push_back(tensor);
      fused.back().name.replace(tensor.name.find(parts[0]), parts[0].size(), name);
    } else if (part < parts.size()) {
      fused.back().shape[0] += tensor.shape[0];
      fused.back().bytes += tensor.bytes;
    } else {
      fused.push_back(tensor);
    }
  }
  return fused;
}

}  // namespace diffserve
