// A packed model directory: its linear layers are what the CPU's kernels read (weight_format.h),
// made by `diffserve convert --quantization`, so that loading is reading. config.json says so:
//   "quantization_config": {"quant_method": "diffserve", "version": 1, "format": "int8",
//                           "group_size": 64, "panel_columns": 32}
// Where a checkpoint has the tensors of a linear layer, whose stacked parts are M.a, M.b and M.c,
// stand
//   M.a+b+c.panels  U8 [panels, bytes of a panel]
//   M.a+b+c.scale   F32 [out_features], of int8
//   M.a+b+c.bias    F32 [out_features], where the layer has biases
// with rows in canonical head order. A tied output projection is there too, as lm_head. What is
// never quantised (weight_table.h) is as in any checkpoint; the embedding is of config.json's
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
  static constexpr int kVersion = 1;  // of the layout; another one is refused

  WeightFormat format = WeightFormat::kInt8;
  int panel_columns = 0;  // KernelTable::panel_columns of the levels that read it

  int NumPanels(int64_t out_features) const {
    return static_cast<int>((out_features + panel_columns - 1) / panel_columns);
  }
  // "avx512, avx512_vnni": those that read it, as --cpu-isa takes them.
  std::string Levels() const;
  std::string ToJson() const;  // the value of quantization_config
  // nullopt: no quantization_config. One of another kind is refused.
  static std::optional<PackedFormat> Read(ConfigReader& config);
};

// A tensor of a checkpoint, its name, and what it must be.
struct NamedShape {
  std::string name;
  std::vector<int64_t> shape;
  std::string dtype = {};  // as the file spells it; empty: any float
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
