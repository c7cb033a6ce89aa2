// SPDX-License-Identifier: Apache-2.0
// A packed model directory: its linear layers are stored as the CPU's kernels read them
// (weight_format.h), so loading needs no conversion. `diffserve convert --quantization` makes it.
// config.json has:
//   "quantization_config": {"quant_method": "diffserve", "version": 1, "format": "int8",
//                           "group_size": 64, "panel_columns": 32}
// The tensors of a linear layer, whose stacked parts are M.a, M.b and M.c, are replaced by
//   M.a+b+c.panels  U8 [panels, bytes per panel]
//   M.a+b+c.scale   F32 [out_features], only int8
//   M.a+b+c.bias    F32 [out_features], if the layer has biases
// with rows in canonical head order. A tied output projection is present too, as lm_head. What is
// never quantised (weight_table.h) is stored as in any checkpoint; the embedding has config.json's
// dtype, in which the model is served.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "kernels/ops/weight_format.h"
#include "models/config_reader.h"

namespace diffserve {

struct LinearTensors;  // weight_table.h

struct PackedFormat {
  static constexpr int kVersion = 1;  // of the layout; other versions are refused

  WeightFormat format = WeightFormat::kInt8;
  int panel_columns = 0;  // cpu::PanelColumns of the levels that read it

  int NumPanels(int64_t out_features) const {
    return static_cast<int>((out_features + panel_columns - 1) / panel_columns);
  }
  // The levels that read it, as --cpu-isa names them: "avx512, avx512_vnni".
  std::string Levels() const;
  CpuIsa FirstLevel() const;
  std::string ToJson() const;  // the value of quantization_config
  // nullopt: there is no quantization_config. One of another kind is refused.
  static std::optional<PackedFormat> Read(ConfigReader& config);
};

// Whether quantization_config says that matrices are E4M3 codes with one scale per tensor or per
// output feature, as llm-compressor and vLLM write them. Other kinds of these methods are refused.
bool StoresFp8(ConfigReader& config);

// A tensor of a checkpoint: its name and its required shape and type.
struct NamedShape {
  std::string name;
  std::vector<int64_t> shape;
  std::string dtype = {};  // as the file spells it; empty: any float type
};

// A linear layer of a packed directory.
struct PackedLinearTensors {
  NamedShape panels;
  std::optional<NamedShape> scale, bias;

  static PackedLinearTensors Of(const std::vector<LinearTensors>& parts,
                                const PackedFormat& packed);
  std::vector<NamedShape> All() const;
};

}  // namespace diffserve
