// SPDX-License-Identifier: Apache-2.0
#include "models/packed_format.h"

#include <iterator>
#include <set>

#include "kernels/ops/weight_codec.h"
#include "kernels/ops/weight_packer.h"
#include "models/weight_table.h"

namespace diffserve {
namespace {

constexpr char kKey[] = "quantization_config";
constexpr char kMethod[] = "diffserve";

// "M.a+b" for the parts "M.a" and "M.b".
std::string StackedName(const std::vector<LinearTensors>& parts) {
  std::string name = parts.front().name;
  for (size_t i = 1; i < parts.size(); ++i)
    name += "+" + parts[i].name.substr(parts[i].name.rfind('.') + 1);
  return name;
}

// The widths of panels that the levels of this program read: "16 or 32".
std::string AllowedColumns() {
  std::string allowed;
  for (int columns : std::set<int>(
           {cpu::PanelColumns(kCpuIsas[0]), cpu::PanelColumns(kCpuIsas[std::size(kCpuIsas) - 1])}))
    allowed += (allowed.empty() ? "" : " or ") + std::to_string(columns);
  return allowed;
}

}  // namespace

std::string PackedFormat::Levels() const {
  std::string levels;
  for (CpuIsa isa : kCpuIsas) {
    if (cpu::PanelColumns(isa) == panel_columns)
      levels += (levels.empty() ? "" : ", ") + std::string(NameOf(isa));
  }
  return levels;
}

CpuIsa PackedFormat::FirstLevel() const {
  return *std::ranges::find(kCpuIsas, panel_columns, cpu::PanelColumns);
}

std::string PackedFormat::ToJson() const {
  return std::string("{\"quant_method\": \"") + kMethod +
         "\", \"version\": " + std::to_string(kVersion) + ", \"format\": \"" +
         std::string(NameOf(format)) + "\", \"group_size\": " + std::to_string(kQuantGroup) +
         ", \"panel_columns\": " + std::to_string(panel_columns) + "}";
}

std::optional<PackedFormat> PackedFormat::Read(ConfigReader& config) {
  std::optional<ConfigReader> json = config.Object(kKey);
  if (!json) return std::nullopt;
  if (!json->IsString("quant_method") || json->String("quant_method", "") != kMethod) {
    config.Fail(kKey, "is set: quantised weights cannot be served");
    return std::nullopt;
  }
  PackedFormat packed;
  if (json->Int("version", std::nullopt, 0, 1 << 30) != kVersion)
    json->Refuse("version", "1: convert the original again");
  const std::string format = json->String("format", std::nullopt);
  bool is_known = false;
  for (WeightFormat known : kQuantizedFormats) {
    if (format != NameOf(known)) continue;
    packed.format = known;
    is_known = true;
  }
  if (!is_known) json->Refuse("format", "int8 or int4");
  if (json->Int("group_size", std::nullopt, 0, 1 << 30) != kQuantGroup)
    json->Refuse("group_size", std::to_string(kQuantGroup));
  packed.panel_columns = json->Int("panel_columns", std::nullopt, 0, 1 << 30);
  if (packed.Levels().empty()) json->Refuse("panel_columns", AllowedColumns());
  return packed;
}

bool StoresFp8(ConfigReader& config) {
  std::optional<ConfigReader> json = config.Object(kKey);
  if (!json || !json->IsString("quant_method")) return false;
  const std::string method = json->String("quant_method", "");
  if (method == "fp8") {
    if (json->Has("weight_block_size"))
      json->Refuse("weight_block_size", "none: a scale per tensor or per output feature");
    return true;
  }
  if (method != "compressed-tensors") return false;
  if (json->String("format", "") != "float-quantized") json->Refuse("format", "float-quantized");
  return true;
}

PackedLinearTensors PackedLinearTensors::Of(const std::vector<LinearTensors>& parts,
                                            const PackedFormat& packed) {
  const std::string name = StackedName(parts);
  int64_t out_features = 0;
  bool has_bias = false;
  for (const LinearTensors& part : parts) {
    out_features += part.out_features;
    has_bias = has_bias || part.has_bias;
  }
  const int64_t panel_bytes = PanelBytes(packed.format, parts.front().in_features,
                                         packed.panel_columns);
  PackedLinearTensors tensors;
  tensors.panels = {name + ".panels", {packed.NumPanels(out_features), panel_bytes}, "U8"};
  if (packed.format == WeightFormat::kInt8)
    tensors.scale = NamedShape{name + ".scale", {out_features}, "F32"};
  if (has_bias) tensors.bias = NamedShape{name + ".bias", {out_features}, "F32"};
  return tensors;
}

std::vector<NamedShape> PackedLinearTensors::All() const {
  std::vector<NamedShape> all = {panels};
  if (scale) all.push_back(*scale);
  if (bias) all.push_back(*bias);
  return all;
}

}  // namespace diffserve
