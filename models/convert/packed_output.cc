// SPDX-License-Identifier: Apache-2.0
#include "models/convert/packed_output.h"

#include <algorithm>

#include "kernels/base/refusal.h"

namespace diffserve {
namespace {

// Visits the table of weights.
struct ItemList {
  const PlanSource& source;
  TableNames source_tables;
  std::vector<PackedOutput::Item> items = {};
  Status status = {};

  struct Nothing {};
  using Weights = DecoderWeights<Nothing, Nothing, Nothing>;

  void Linear(Nothing&, const std::vector<LinearTensors>& parts, LinearOutput,
              bool may_quantize = true) {
    if (may_quantize) return Packed(parts, parts);
    for (const LinearTensors& part : parts) Matrix(part.name, part);
  }
  template <typename Made = std::identity>
  void Vector(Nothing&, const VectorTensor& vector, const Made& = {}) {
    Copied(vector.name, vector.name, vector.shape);
  }
  template <typename Use>
  void Numbers(const VectorTensors& vectors, const Use&) {
    for (const VectorTensor& vector : vectors) Copied(vector.name, vector.name, vector.shape);
  }
  void Tables(Nothing&, const LinearTensors& table, Nothing&, const LinearTensors& head) {
    Matrix(source_tables.embedding, table);
    LinearTensors head_source = head;
    head_source.name = source_tables.lm_head;
    Packed({head}, {head_source});
  }

 private:
  void Check(const std::string& name, const std::vector<int64_t>& shape) {
    if (status.ok()) status = source.Check(name, shape);
  }
  void Matrix(const std::string& from, const LinearTensors& matrix) {
    Copied(from + ".weight", matrix.name + ".weight", {matrix.out_features, matrix.in_features});
    if (matrix.has_bias) Copied(from + ".bias", matrix.name + ".bias", {matrix.out_features});
  }
  void Copied(const std::string& from, const std::string& name, std::vector<int64_t> shape) {
    Check(from, shape);
    items.push_back({{name, std::move(shape)}, source.Find(from), {}, {}});
  }
  void Packed(const std::vector<LinearTensors>& parts, std::vector<LinearTensors> sources) {
    for (const LinearTensors& part : sources) {
      Check(part.name + ".weight", {part.out_features, part.in_features});
      if (part.has_bias) Check(part.name + ".bias", {part.out_features});
    }
    items.push_back({{}, nullptr, parts, std::move(sources)});
  }
};

}  // namespace

const PlannedTensor* PlanSource::Find(const std::string& name) const {
  const auto found = std::ranges::find(plan_.tensors, name, &PlannedTensor::name);
  return found == plan_.tensors.end() ? nullptr : &*found;
}

Status PlanSource::Check(const std::string& name, const std::vector<int64_t>& shape) const {
  const std::string expected = TensorView{.shape = shape}.ShapeString();
  const PlannedTensor* const found = Find(name);
  if (found == nullptr) {
    return NotAllowed(where_ + ": tensor " + name + " is missing", "shape " + expected);
  }
  if (found->shape == shape) return Status();
  return NotAllowed(found->source->file->path() + ": tensor " + found->source->name +
                        " has shape " + TensorView{.shape = found->shape}.ShapeString(),
                    expected + " from config.json");
}

Result<TensorView> PlanSource::Get(const std::string& name, const std::vector<int64_t>& shape) {
  DS_RETURN_IF_ERROR(Check(name, shape));
  const PlannedTensor& tensor = *Find(name);
  const SafetensorsFile& file = *tensor.source->file;
  SafetensorsEntry rows = tensor.source->entry;
  TensorView view{nullptr, rows.dtype, shape, file.path() + ": tensor " + tensor.source->name};
  const size_t size = static_cast<size_t>(view.num_elements()) * SizeOf(view.dtype);
  rows.begin += size / static_cast<size_t>(shape[0]) * static_cast<size_t>(tensor.first_row);
  rows.end = rows.begin + size;
  buffers_.push_back(std::make_unique_for_overwrite<std::byte[]>(size));
  DS_RETURN_IF_ERROR(file.Read(rows, buffers_.back().get()));
  view.data = buffers_.back().get();
  return view;
}

Result<std::unique_ptr<PackedOutput>> PackedOutput::Plan(const ModelConfig& config,
                                                         const PackedFormat& format,
                                                         PlanSource& source) {
  std::unique_ptr<PackedOutput> output(new PackedOutput(config, format, source));
  ModelConfig packed = config;
  packed.packed = format;
  const TableNames names = FindTables(packed, source);
  ItemList list{.source = source, .source_tables = FindTables(config, source)};
  ItemList::Weights nothing;
  VisitWeights(config, names.embedding, names.lm_head, nothing, list);
  DS_RETURN_IF_ERROR(list.status);
  output->items_ = std::move(list.items);
  return output;
}

std::vector<OutputTensor> PackedOutput::TensorsOf(const Item& item) const {
  const PackedLinearTensors linear = PackedLinearTensors::Of(item.packed, format_);
  std::vector<OutputTensor> tensors = {{linear.panels.name, std::nullopt, linear.panels.shape}};
  for (const std::optional<NamedShape>& floats : {linear.scale, linear.bias}) {
    if (floats) tensors.push_back({floats->name, DType::kFloat32, floats->shape});
  }
  return tensors;
}

Status PackedOutput::Write(const Item& item, cpu::WeightPacker& packer,
                           SafetensorsWriter& writer) const {
  TensorReader reader(config_, source_);
  const std::vector<LinearPart> parts = reader.Parts(item.sources);
  DS_RETURN_IF_ERROR(reader.status());
  const cpu::PackedLinear linear = packer.Linear(parts);
  reader.ReleaseMemory();
  DS_RETURN_IF_ERROR(packer.status());
  const auto count = static_cast<size_t>(linear.out_features());
  DS_RETURN_IF_ERROR(
      writer.Append({static_cast<const std::byte*>(linear.panels()),
                     static_cast<size_t>(linear.panel_bytes()) *
                         static_cast<size_t>(format_.NumPanels(linear.out_features()))}));
  if (linear.scale() != nullptr)
    DS_RETURN_IF_ERROR(writer.Append(std::as_bytes(std::span(linear.scale(), count))));
  if (linear.bias() != nullptr)
    DS_RETURN_IF_ERROR(writer.Append(std::as_bytes(std::span(linear.bias(), count))));
  return Status();
}

}  // namespace diffserve
