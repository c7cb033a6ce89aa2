// SPDX-License-Identifier: Apache-2.0
// Checkpoints whose linear layers are stored in fp8, as llm-compressor writes them.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "kernels/ops/weight_codec.h"
#include "tests/testing/models/checkpoint_writer.h"

namespace diffserve::testing {

enum class Fp8Scales { kPerTensor, kPerRow };

inline constexpr char kFp8Config[] = R"({"quant_method": "fp8", "activation_scheme": "dynamic"})";

// Projections, and the output projection if asked for, as F8_E4M3 with scales; and the values that
// they then have as F32.
struct Fp8Tensors {
  std::vector<FileTensor> stored, decoded;
};

// REQUIRES: float32 tensors.
inline Fp8Tensors ToFp8(const std::vector<FileTensor>& tensors, Fp8Scales scales,
                        bool with_lm_head = false) {
  Fp8Tensors result;
  for (const FileTensor& tensor : tensors) {
    if (!tensor.name.ends_with("_proj.weight") &&
        !(with_lm_head && tensor.name == "lm_head.weight")) {
      result.stored.push_back(tensor);
      result.decoded.push_back(tensor);
      continue;
    }
    const auto rows = static_cast<size_t>(tensor.shape[0]);
    std::vector<float> values(tensor.bytes.size() / sizeof(float));
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    const size_t width = values.size() / rows;
    std::vector<float> scale;
    for (size_t row = 0; row < rows; ++row)
      scale.push_back(Fp8WeightCodec::ScaleOf(std::span(values).subspan(row * width, width)));
    const float largest = *std::ranges::max_element(scale);
    if (scales == Fp8Scales::kPerTensor) scale.assign(rows, largest);
    std::string codes;
    for (size_t i = 0; i < values.size(); ++i) {
      const uint8_t code = Fp8WeightCodec::Encode(values[i], scale[i / width]);
      codes.push_back(static_cast<char>(code));
      values[i] = Fp8WeightCodec::Decode(code, scale[i / width]);
    }
    const auto bytes = [](const std::vector<float>& numbers) {
      return std::string(reinterpret_cast<const char*>(numbers.data()),
                         numbers.size() * sizeof(float));
    };
    result.decoded.push_back({tensor.name, "F32", tensor.shape, bytes(values)});
    result.stored.push_back({tensor.name, "F8_E4M3", tensor.shape, codes});
    if (scales == Fp8Scales::kPerTensor) {
      result.stored.push_back({tensor.name + "_scale", "F32", {1}, bytes({largest})});
    } else {
      result.stored.push_back({tensor.name + "_scale", "F32", {tensor.shape[0], 1}, bytes(scale)});
    }
  }
  return result;
}

}  // namespace diffserve::testing
