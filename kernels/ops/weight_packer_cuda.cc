// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/weight_packer_cuda.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>

#include "kernels/ops/weight_codec.h"
#include "kernels/ops/weight_tiles.h"

namespace diffserve::cuda {
namespace {

constexpr size_t kStagingBytes = size_t{16} << 20;  // of each of two buffers

// A row of the matrix.
void WriteBFloat16s(const TensorView& tensor, int64_t row, BFloat16* out) {
  const int64_t width = tensor.shape[1], first = row * width;
  if (tensor.dtype == DType::kBFloat16) {
    std::memcpy(out, static_cast<const BFloat16*>(tensor.data) + first,
                static_cast<size_t>(width) * sizeof(BFloat16));
    return;
  }
  constexpr int64_t kStrip = 1024;
  float wide[kStrip];
  for (int64_t done = 0; done < width; done += kStrip) {
    const int64_t count = std::min(kStrip, width - done);
    CopyToFloat(tensor, first + done, count, wide);
    std::transform(wide, wide + count, out + done, [](float x) { return FloatToBFloat16(x); });
  }
}

}  // namespace

WeightPacker::WeightPacker(const Stream& stream, WeightFormat linear_format, CpuIsa isa,
                           ThreadPool& pool)
    : stream_(stream),
      linear_format_(linear_format),
      pool_(pool),
      quantizer_(WeightFormat::kBFloat16, linear_format, isa, pool) {
  for (Staging& staging : staging_) Open(&staging);
}

PackedLinear WeightPacker::Linear(std::span<const LinearPart> parts, LinearOutput output,
                                  bool may_quantize) {
  const auto is_empty = [](const LinearPart& part) { return part.weight.data == nullptr; };
  if (!status_.ok() || std::ranges::any_of(parts, is_empty)) return {};
  const auto has_scale = [](const LinearPart& part) { return part.scale.data != nullptr; };
  if (linear_format_ == WeightFormat::kFp8E4M3) {
    if (may_quantize && (!keeps_others_ || std::ranges::all_of(parts, has_scale)))
      return Fp8(parts, output);
  } else if (IsQuantized(linear_format_) && may_quantize) {
    const cpu::PackedLinear matrix = quantizer_.Linear(parts, output);
    if (status_.ok()) status_ = quantizer_.status();
    return Quantized(matrix, output);
  }
  PackedLinear linear;
  linear.output_ = output;
  std::vector<float> bias;
  bool has_bias = false;
  for (const LinearPart& part : parts) {
    has_bias = has_bias || part.bias.data != nullptr;
    linear.in_features_ = static_cast<int>(part.weight.shape[1]);
    for (int64_t i = 0; i < part.out_features(); ++i)
      bias.push_back(part.bias.data == nullptr ? 0 : part.bias.At(part.RowOf(i)));
  }
  linear.out_features_ = static_cast<int>(bias.size());
  const size_t row_bytes = static_cast<size_t>(linear.in_features_) * sizeof(BFloat16);
  linear.weight_ = std::make_shared<DeviceBuffer>(Allocate(bias.size() * row_bytes));
  size_t offset = 0;
  for (const LinearPart& part : parts) {
    CopyRows(*linear.weight_, offset, part);
    offset += static_cast<size_t>(part.out_features()) * row_bytes;
  }
  if (has_bias) linear.bias_ = Bias(bias, output);
  return linear;
}

PackedLinear WeightPacker::Quantized(const cpu::PackedLinear& matrix, LinearOutput output) {
  PackedLinear linear;
  linear.output_ = output;
  linear.format_ = linear_format_;
  linear.in_features_ = matrix.in_features();
  linear.out_features_ = matrix.out_features();
  if (linear.out_features_ == 0) return linear;
  const auto tile_row_bytes = static_cast<size_t>(NumQuantGroups(matrix.in_features()) *
                                                  TileBytes(matrix.format()));
  const int num_tiles = static_cast<int>(NumRowTiles(matrix.out_features()));
  const int per_copy = static_cast<int>(std::max<size_t>(1, kStagingBytes / tile_row_bytes));
  linear.weight_ = std::make_shared<DeviceBuffer>(
      Allocate(static_cast<size_t>(num_tiles) * tile_row_bytes));
  for (int first = 0; first < num_tiles; first += per_copy) {
    const int count = std::min(per_copy, num_tiles - first);
    CopyPiece(*linear.weight_, static_cast<size_t>(first) * tile_row_bytes,
              static_cast<size_t>(count) * tile_row_bytes, [&](std::byte* bytes) {
                RunShares(pool_, count, /*worth_waking=*/true, [&](int begin, int end) {
                  for (int i = begin; i < end; ++i)
                    cpu::WriteWeightTiles(matrix, first + i,
                                          bytes + static_cast<size_t>(i) * tile_row_bytes);
                });
              });
  }
  const auto features = static_cast<size_t>(matrix.out_features());
  const auto copy = [&](const float* values) {
    return std::vector<float>(values, values + features);
  };
  if (matrix.scale() != nullptr) linear.scale_ = Floats(copy(matrix.scale()));
  if (matrix.bias() != nullptr) linear.bias_ = Bias(copy(matrix.bias()), output);
  return linear;
}

PackedLinear WeightPacker::Fp8(std::span<const LinearPart> parts, LinearOutput output) {
  PackedLinear linear;
  linear.output_ = output;
  linear.format_ = WeightFormat::kFp8E4M3;
  struct Row {
    const LinearPart* part;
    int64_t index;
  };
  std::vector<Row> rows;
  std::vector<float> bias;
  bool has_bias = false;
  for (const LinearPart& part : parts) {
    has_bias = has_bias || part.bias.data != nullptr;
    linear.in_features_ = static_cast<int>(part.weight.shape[1]);
    for (int64_t i = 0; i < part.out_features(); ++i) {
      rows.push_back({&part, part.RowOf(i)});
      bias.push_back(part.bias.data == nullptr ? 0 : part.bias.At(part.RowOf(i)));
    }
  }
  linear.out_features_ = static_cast<int>(rows.size());
  const auto in = static_cast<size_t>(linear.in_features_),
             row_bytes = static_cast<size_t>(Fp8Padded(linear.in_features_));
  const int num_rows = Fp8Padded(linear.out_features_);
  const int per_copy = static_cast<int>(std::max<size_t>(1, kStagingBytes / row_bytes));
  std::vector<float> scale(rows.size());
  linear.weight_ = std::make_shared<DeviceBuffer>(
      Allocate(static_cast<size_t>(num_rows) * row_bytes));
  for (int first = 0; first < num_rows; first += per_copy) {
    const int count = std::min(per_copy, num_rows - first);
    const size_t size = static_cast<size_t>(count) * row_bytes;
    CopyPiece(*linear.weight_, static_cast<size_t>(first) * row_bytes, size, [&](std::byte* bytes) {
      std::memset(bytes, 0, size);
      RunShares(pool_, count, /*worth_waking=*/true, [&](int begin, int end) {
        std::vector<float> wide(in);
        for (int i = begin; i < end; ++i) {
          const auto row = static_cast<size_t>(first + i);
          if (row >= rows.size()) break;
          CopyToFloat(rows[row].part->weight, rows[row].index * static_cast<int64_t>(in),
                      static_cast<int64_t>(in), wide.data());
          const TensorView& stored = rows[row].part->scale;
          scale[row] = stored.data == nullptr ? Fp8WeightCodec::ScaleOf(wide)
                                              : stored.At(rows[row].index);
          const std::span codes(
              reinterpret_cast<uint8_t*>(bytes) + static_cast<size_t>(i) * row_bytes, in);
          std::ranges::transform(wide, codes.begin(), [&](float value) {
            return Fp8WeightCodec::Encode(value, scale[row]);
          });
          // A NaN among them reaches every result of the row. Fp8Lane knows no code for it.
          if (std::ranges::any_of(codes, [](uint8_t code) { return (code & 0x7f) == 0x7f; }))
            scale[row] = std::numeric_limits<float>::quiet_NaN();
        }
      });
    });
  }
  linear.scale_ = Floats(scale);
  if (has_bias) linear.bias_ = Bias(bias, output);
  return linear;
}

EmbeddingTable WeightPacker::Table(const TensorView& table) {
  EmbeddingTable packed;
  packed.vocab_ = static_cast<int>(table.shape[0]);
  packed.width_ = static_cast<int>(table.shape[1]);
  packed.memory_ = std::make_shared<DeviceBuffer>(
      Allocate(static_cast<size_t>(table.num_elements()) * sizeof(BFloat16)));
  CopyRows(*packed.memory_, 0, {.weight = table, .row_order = {}, .bias = {}});
  return packed;
}

EmbeddingTable WeightPacker::Table(const Buffer& memory, DType dtype, std::pair<int, int> shape) {
  return Table({.data = memory.data(), .dtype = dtype, .shape = {shape.first, shape.second}});
}

PackedLinear WeightPacker::TiedLinear(const EmbeddingTable& embedding, const LinearPart& table) {
  if (IsQuantized(linear_format_) && !keeps_others_)
    return Linear({&table, 1}, LinearOutput::kFloat32);
  PackedLinear linear;
  linear.out_features_ = embedding.vocab();
  linear.in_features_ = embedding.width();
  linear.weight_ = embedding.memory_;
  return linear;
}

DeviceBuffer WeightPacker::Floats(const std::vector<float>& values) {
  DeviceBuffer to = Allocate(values.size() * sizeof(float));
  const size_t per_copy = kStagingBytes / sizeof(float);
  for (size_t begin = 0; begin < values.size(); begin += per_copy) {
    const size_t count = std::min(per_copy, values.size() - begin);
    CopyPiece(to, begin * sizeof(float), count * sizeof(float), [&](std::byte* bytes) {
      std::memcpy(bytes, values.data() + begin, count * sizeof(float));
    });
  }
  return to;
}

DeviceBuffer WeightPacker::Bias(const std::vector<float>& bias, LinearOutput output) {
  return output == LinearOutput::kFloat32 ? Floats(bias) : BFloat16s(bias);
}

DeviceBuffer WeightPacker::BFloat16s(const std::vector<float>& values) {
  const int64_t count = static_cast<int64_t>(values.size());
  DeviceBuffer to = Allocate(values.size() * sizeof(BFloat16));
  const TensorView column = {values.data(), DType::kFloat32, {count, 1}};
  CopyRows(to, 0, {.weight = column, .row_order = {}, .bias = {}});
  return to;
}

void WeightPacker::Open(Staging* staging) {
  if (!status_.ok()) return;
  Result<PinnedBuffer> buffer = PinnedBuffer::Allocate(kStagingBytes);
  Result<Event> event = Event::Create();
  status_ = buffer.ok() ? event.status() : buffer.status();
  if (!status_.ok()) return;
  staging->buffer = std::move(*buffer);
  staging->copied = std::make_unique<Event>(std::move(*event));
}

DeviceBuffer WeightPacker::Allocate(size_t size_bytes) {
  if (!status_.ok()) return {};
  Result<DeviceBuffer> buffer = DeviceBuffer::Allocate(size_bytes);
  if (!buffer.ok()) status_ = buffer.status();
  return buffer.ok() ? std::move(*buffer) : DeviceBuffer();
}

template <typename Fill>
void WeightPacker::CopyPiece(const DeviceBuffer& to, size_t offset, size_t size_bytes,
                             const Fill& fill) {
  if (!status_.ok()) return;
  Staging& staging = staging_[next_++ % staging_.size()];
  if (next_ > staging_.size()) status_ = staging.copied->Wait();
  if (!status_.ok()) return;
  fill(staging.buffer.as<std::byte>());
  status_ = CopyToDevice(staging.buffer.bytes().first(size_bytes), to, offset, stream_);
  if (status_.ok()) status_ = stream_.Record(*staging.copied);
}

void WeightPacker::CopyRows(const DeviceBuffer& to, size_t offset, const LinearPart& part) {
  const TensorView& tensor = part.weight;
  const int64_t width = tensor.shape[1];
  const size_t row_bytes = static_cast<size_t>(width) * sizeof(BFloat16);
  const int64_t per_copy = std::max<int64_t>(1, static_cast<int64_t>(kStagingBytes / row_bytes));
  for (int64_t begin = 0; begin < part.out_features(); begin += per_copy) {
    const int64_t count = std::min(per_copy, part.out_features() - begin);
    const bool worth_waking = count * width >= kElementsWorthWaking;
    CopyPiece(to, offset + static_cast<size_t>(begin) * row_bytes,
              static_cast<size_t>(count) * row_bytes, [&](std::byte* bytes) {
                auto* const out = reinterpret_cast<BFloat16*>(bytes);
                RunShares(pool_, static_cast<int>(count), worth_waking, [&](int first, int last) {
                  for (int64_t i = first; i < last; ++i)
                    WriteBFloat16s(tensor, part.RowOf(begin + i), out + i * width);
                });
              });
  }
}

}  // namespace diffserve::cuda
