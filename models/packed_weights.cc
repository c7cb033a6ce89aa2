// SPDX-License-Identifier: Apache-2.0
#include "models/packed_weights.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include "kernels/base/refusal.h"
#include "kernels/ops/weight_codec.h"
#include "models/finite_check.h"

namespace diffserve {
namespace {

constexpr size_t kPackedPieceBytes = size_t{1} << 20;  // read and checked while it is in L2

}  // namespace

Result<cpu::PackedLinear> PackedReader::Linear(const std::vector<LinearTensors>& parts) {
  const PackedLinearTensors tensors = PackedLinearTensors::Of(parts, packed_);
  cpu::PackedMatrix matrix;
  matrix.in_features = static_cast<int>(parts.front().in_features);
  for (const LinearTensors& part : parts)
    matrix.out_features += static_cast<int>(part.out_features);
  matrix.format = packed_.format;
  matrix.isa = isa_;
  const std::vector<int64_t>& shape = tensors.panels.shape;
  matrix.panels = Buffer(static_cast<size_t>(shape[0] * shape[1]));
  const auto check = [&](int64_t row, std::span<const std::byte> bytes) {
    const int64_t found = cpu::FindBadPanel(packed_.format, packed_.panel_columns,
                                            matrix.in_features, bytes);
    if (found < 0) return Status();
    const bool is_int8 = packed_.format == WeightFormat::kInt8;
    return NotAllowed(checkpoint_.PathOf(tensors.panels.name) + ": tensor " + tensors.panels.name +
                          ": panel " + std::to_string(row + found) +
                          (is_int8 ? " has a code 0" : " has a scale that is not finite"),
                      is_int8 ? "1 to 255" : "a finite number");
  };
  DS_RETURN_IF_ERROR(ReadRows(tensors.panels.name, shape, matrix.panels, check));
  if (tensors.scale) DS_RETURN_IF_ERROR(Assign(&matrix.scale, ReadScale(*tensors.scale)));
  if (tensors.bias) DS_RETURN_IF_ERROR(Assign(&matrix.bias, ReadFloats(*tensors.bias)));
  return cpu::PackedLinear(std::move(matrix));
}

Result<std::vector<float>> PackedReader::ReadFloats(const NamedShape& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.shape[0]));
  const Result<TensorView> view = checkpoint_.Get(tensor.name, tensor.shape);
  if (!view.ok()) return view.status();
  CopyToFloat(*view, 0, tensor.shape[0], values.data());
  return values;
}
Result<std::vector<float>> PackedReader::ReadScale(const NamedShape& tensor) {
  Result<std::vector<float>> scale = ReadFloats(tensor);
  if (!scale.ok()) return scale;
  const auto bad = std::ranges::find_if(
      *scale, [](float value) { return !(value >= 0 && std::isfinite(value)); });
  if (bad == scale->end()) return scale;
  return NotAllowed(checkpoint_.PathOf(tensor.name) + ": tensor " + tensor.name + ": element [" +
                        std::to_string(bad - scale->begin()) + "] is " + std::to_string(*bad),
                    "a finite number, 0 or more");
}

Result<Buffer> PackedReader::Table(const LinearTensors& table) {
  const DType dtype = DTypeOf(table_format_);
  const std::string name = table.name + ".weight";
  const std::vector<int64_t> shape = {table.out_features, table.in_features};
  Buffer memory(WeightBytes(table_format_, table.out_features, table.in_features));
  std::mutex mutex;
  FiniteCheck all(dtype, dtype);  // guarded by the mutex
  const auto check = [&](int64_t row, std::span<const std::byte> bytes) {
    FiniteCheck rows(dtype, dtype);
    rows.Add(row * table.in_features, bytes);
    std::lock_guard lock(mutex);
    all.Add(rows);
    return Status();
  };
  DS_RETURN_IF_ERROR(ReadRows(name, shape, memory, check));
  const std::string where = checkpoint_.PathOf(name) + ": tensor " + name;
  DS_RETURN_IF_ERROR(
      all.status({.data = memory.data(), .dtype = dtype, .shape = shape, .name = where}));
  return memory;
}

Status PackedReader::ReadRows(const std::string& name, const std::vector<int64_t>& shape,
                              Buffer& memory, const CheckRows& check) {
  const size_t row_bytes = memory.size_bytes() / static_cast<size_t>(shape[0]);
  const int rows_at_once = static_cast<int>(std::max<size_t>(1, kPackedPieceBytes / row_bytes));
  std::vector<Status> statuses(static_cast<size_t>(pool_.num_threads()));
  std::vector<RowDigest> digests(checkpoint_.has_digest() ? static_cast<size_t>(shape[0]) : 0);
  pool_.Run([&](int worker) {
    Status& status = statuses[static_cast<size_t>(worker)];
    const Share share = ShareOf(static_cast<int>(shape[0]), worker, pool_.num_threads());
    for (int row = share.begin; row < share.end && status.ok(); row += rows_at_once) {
      const int end = std::min(share.end, row + rows_at_once);
      const std::span<std::byte> piece(memory.as<std::byte>() + row_bytes * size_t(row),
                                       row_bytes * size_t(end - row));
      status = checkpoint_.ReadBytes(name, row_bytes * size_t(row), piece);
      for (int i = row; i < end && !digests.empty(); ++i)
        digests[size_t(i)] = DigestOf(piece.subspan(row_bytes * size_t(i - row), row_bytes));
      if (status.ok()) status = check(row, piece);
    }
  });
  checkpoint_.CountRead(memory.size_bytes());
  for (Status& status : statuses) DS_RETURN_IF_ERROR(std::move(status));
  if (!digests.empty()) checkpoint_.DigestRows(name, digests);
  return Status();
}

}  // namespace diffserve
