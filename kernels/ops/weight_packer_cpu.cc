// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/base/kernels_for.h"
#include "kernels/base/refusal.h"
#include "kernels/ops/linear_kernel.h"
#include "kernels/ops/weight_codec.h"
#include "kernels/ops/weight_packer.h"
#include "kernels/ops/weight_packer_kernel.h"
#include "kernels/process/check.h"

namespace diffserve::cpu {
namespace {

constexpr int kStrip = 256;  // values handled at a time; a multiple of every kInterleave

// Calls use(begin, count, values) for each strip of elements [begin, end) of the tensor, as
// float32.
template <typename Use>
void ForEachStrip(const TensorView& tensor, int64_t begin, int64_t end, const Use& use) {
  float strip[kStrip];
  for (; begin < end; begin += kStrip) {
    const int count = static_cast<int>(std::min<int64_t>(kStrip, end - begin));
    CopyToFloat(tensor, begin, count, strip);
    use(begin, count, strip);
  }
}

// One output feature's origin.
struct SourceRow {
  const LinearPart* part;
  int64_t row;  // in the part's tensors
};

std::vector<SourceRow> SourceRows(std::span<const LinearPart> parts) {
  std::vector<SourceRow> rows;
  for (const LinearPart& part : parts) {
    DS_CHECK(part.weight.shape[1] == parts[0].weight.shape[1],
             "the parts of a linear layer differ in in_features");
    for (int64_t i = 0; i < part.out_features(); ++i) {
      const int64_t row = part.RowOf(i);
      DS_CHECK(row >= 0 && row < part.weight.shape[0],
               "row_order names a row that the weight does not have");
      rows.push_back({&part, row});
    }
  }
  return rows;
}

std::vector<float> BiasOf(std::span<const SourceRow> rows) {
  const auto value = [](const SourceRow& row) {
    return row.part->bias.data != nullptr ? row.part->bias.At(row.row) : 0.0f;
  };
  std::vector<float> bias;
  if (std::ranges::any_of(rows, [](const auto& row) { return row.part->bias.data != nullptr; }))
    std::ranges::transform(rows, std::back_inserter(bias), value);
  return bias;
}

// Writes a panel of `columns` columns; `rows` are the sources of the first ones. A strip of every
// row comes before the next strip, so that its part of the panel stays in L1.
template <typename Codec>
void WritePanel(std::span<const SourceRow> rows, int columns, int64_t in_features,
                typename Codec::Panel::Element* panel) {
  using Element = typename Codec::Panel::Element;
  constexpr int kInterleave = Codec::Panel::kInterleave;
  for (int64_t begin = 0; begin < in_features; begin += kStrip) {
    const int count = static_cast<int>(std::min<int64_t>(kStrip, in_features - begin));
    Element* to = panel + begin * columns;
    for (const SourceRow& row : rows) {
      const TensorView& weight = row.part->weight;
      const int64_t from = row.row * in_features + begin;
      const auto write = [&](const auto& element) {
        int i = 0;
        for (; i + kInterleave <= count; i += kInterleave) {
          for (int k = 0; k < kInterleave; ++k) to[int64_t{i} * columns + k] = element(i + k);
        }
        for (int k = 0; i + k < count; ++k) to[int64_t{i} * columns + k] = element(i + k);
      };
      if (weight.dtype == Codec::kDType) {
        const Element* elements = static_cast<const Element*>(weight.data) + from;
        write([&](int i) { return elements[i]; });
      } else {
        float values[kStrip];
        CopyToFloat(weight, from, count, values);
        write([&](int i) { return Codec::Encode(values[i]); });
      }
      to += kInterleave;
    }
  }
}

// The same for a quantised format. False: it cannot hold one of the values.
bool WriteQuantizedPanel(const PackerKernels& kernels, std::span<const SourceRow> rows,
                         QuantizedPanel to) {
  std::vector<PanelRow> sources;
  for (const SourceRow& row : rows) {
    const TensorView& weight = row.part->weight;
    const int64_t first_byte = row.row * to.in_features *
                               static_cast<int64_t>(SizeOf(weight.dtype));
    sources.push_back({static_cast<const std::byte*>(weight.data) + first_byte, weight.dtype});
  }
  to.rows = sources.data();
  to.num_rows = static_cast<int>(sources.size());
  return kernels.pack(to);
}

// Index of a value that the format cannot hold; -1: there is none.
int64_t FindOutside(WeightFormat format, std::span<const float> values) {
  if (format == WeightFormat::kFloat16) return FindOutsideFloat16(values);
  const auto is_outside = [&](float value) {
    const float limit = format == WeightFormat::kInt4 ? kInt4WeightMax
                                                      : std::numeric_limits<float>::max();
    return !(std::abs(value) <= limit);
  };
  const auto found = std::ranges::find_if(values, is_outside);
  return found == values.end() ? -1 : found - values.begin();
}

}  // namespace

int PanelColumns(CpuIsa isa) { return KernelsFor<LinearKernels>(isa).panel_columns; }

int64_t FindBadPanel(WeightFormat format, int columns, int64_t in_features,
                     std::span<const std::byte> panels) {
  const size_t panel_bytes = static_cast<size_t>(PanelBytes(format, in_features, columns));
  const auto* bytes = reinterpret_cast<const uint8_t*>(panels.data());
  const auto* const end = bytes + panels.size();
  // These loops have no early exit, so they run at memory speed.
  for (int64_t panel = 0; bytes < end; bytes += panel_bytes, ++panel) {
    bool is_bad = false;
    if (format == WeightFormat::kInt8) {
      uint8_t least = 255;
      for (size_t i = 0; i < panel_bytes; ++i) least = std::min(least, bytes[i]);
      is_bad = least < Int8Panel::kZero - Int8Panel::kCodeMax;
    } else {
      constexpr uint16_t kExponent = 0x7c00;  // of a float16 that is not finite
      const auto group_bytes = static_cast<size_t>(Int4Panel::GroupBytes(columns));
      for (size_t group = 0; group < panel_bytes; group += group_bytes) {
        const uint8_t* scales = bytes + group + Int4Panel::ScalesAt(columns);
        for (int i = 0; i < columns; ++i) {
          const int upper = scales[2 * i + 1] << 8;
          is_bad |= (upper & kExponent) == kExponent;
        }
      }
    }
    if (is_bad) return panel;
  }
  return -1;
}

PackedLinear::PackedLinear(PackedMatrix matrix)
    : out_features_(matrix.out_features),
      in_features_(matrix.in_features),
      format_(matrix.format),
      isa_(matrix.isa),
      panels_(std::move(matrix.panels)),
      scale_(std::move(matrix.scale)),
      bias_(std::move(matrix.bias)) {
  const int columns = PanelColumns(isa_);
  const size_t num_panels = static_cast<size_t>((out_features_ + columns - 1) / columns);
  panel_bytes_ = PanelBytes(format_, in_features_, columns);
  DS_CHECK(panels_.size_bytes() == num_panels * static_cast<size_t>(panel_bytes_),
           "all panels of the matrix");
  if (format_ == WeightFormat::kInt8) scale_.resize(num_panels * static_cast<size_t>(columns));
}

void WeightPacker::CheckRange(const TensorView& tensor, WeightFormat format) {
  const bool is_limited = IsQuantized(format) ||
                          (format == WeightFormat::kFloat16 && tensor.dtype != DType::kFloat16);
  if (!is_limited || !status_.ok()) return;
  const int64_t num_rows = tensor.shape[0], width = tensor.num_elements() / num_rows;
  std::atomic<int64_t> outside{-1};
  RunShares(pool_, static_cast<int>(num_rows), /*worth_waking=*/true, [&](int begin, int end) {
    ForEachStrip(tensor, begin * width, end * width,
                 [&](int64_t first, int count, const float* values) {
                   const int64_t found = FindOutside(format, {values, static_cast<size_t>(count)});
                   if (found >= 0) outside = first + found;
                 });
  });
  if (outside < 0) return;
  const char* const limit = format == WeightFormat::kFloat16 ? "at most 65504"
                            : format == WeightFormat::kInt4  ? "finite numbers up to 524032"
                                                             : "finite numbers";
  status_ = NotAllowed(tensor.name + ": element [" + std::to_string(outside / width) + ", " +
                           std::to_string(outside % width) + "] is " +
                           std::to_string(tensor.At(outside)),
                       std::string(limit) + ", which " + std::string(NameOf(format)) + " holds");
}

PackedLinear WeightPacker::Linear(std::span<const LinearPart> parts, LinearOutput,
                                  bool may_quantize) {
  const WeightFormat format = may_quantize ? linear_format_ : format_;
  if (!IsQuantized(format)) {
    for (const LinearPart& part : parts) CheckRange(part.weight, format);
  }
  PackedLinear packed;
  if (parts.empty() || !status_.ok()) return packed;
  const std::vector<SourceRow> rows = SourceRows(parts);
  const auto& kernels = KernelsFor<PackerKernels>(isa_);
  const int columns = PanelColumns(isa_);
  const int num_panels = (static_cast<int>(rows.size()) + columns - 1) / columns;
  packed.out_features_ = static_cast<int>(rows.size());
  packed.in_features_ = static_cast<int>(parts[0].weight.shape[1]);
  packed.format_ = format;
  packed.isa_ = isa_;
  packed.bias_ = BiasOf(rows);
  packed.panel_bytes_ = PanelBytes(format, packed.in_features_, columns);
  packed.panels_ = Buffer(static_cast<size_t>(num_panels * packed.panel_bytes_));
  if (format == WeightFormat::kInt8)
    packed.scale_.resize(static_cast<size_t>(num_panels) * static_cast<size_t>(columns));
  std::atomic<bool> fits = true;
  RunShares(pool_, num_panels, /*worth_waking=*/true, [&](int begin, int end) {
    for (int panel = begin; panel < end; ++panel) {
      const size_t first = static_cast<size_t>(panel) * static_cast<size_t>(columns);
      const auto panel_rows = std::span(rows).subspan(
          first, std::min(static_cast<size_t>(columns), rows.size() - first));
      std::byte* to = packed.panels_.as<std::byte>() + panel * packed.panel_bytes_;
      if (IsQuantized(format)) {
        const QuantizedPanel panel_to = {
            .format = format,
            .rows = nullptr,
            .num_rows = 0,
            .in_features = packed.in_features_,
            .panel = reinterpret_cast<uint8_t*>(to),
            .scales = format == WeightFormat::kInt8 ? packed.scale_.data() + first : nullptr};
        if (!WriteQuantizedPanel(kernels, panel_rows, panel_to)) fits = false;
        continue;
      }
      WithCodec(format, [&](auto codec) {
        using Codec = decltype(codec);
        WritePanel<Codec>(panel_rows, columns, packed.in_features_,
                          reinterpret_cast<typename Codec::Panel::Element*>(to));
      });
    }
  });
  if (fits) return packed;
  // Locates the value only now that one is known to exist.
  for (const LinearPart& part : parts) CheckRange(part.weight, format);
  return PackedLinear();
}

EmbeddingTable WeightPacker::Table(const TensorView& table) {
  CheckRange(table, format_);
  EmbeddingTable packed;
  if (!status_.ok()) return packed;
  packed.vocab_ = static_cast<int>(table.shape[0]);
  packed.width_ = static_cast<int>(table.shape[1]);
  packed.format_ = format_;
  packed.memory_ = Buffer(WeightBytes(format_, packed.vocab_, packed.width_));
  WithCodec(format_, [&](auto codec) {
    auto* to = packed.memory_.as<typename decltype(codec)::Panel::Element>();
    RunShares(pool_, packed.vocab_, /*worth_waking=*/true, [&](int begin, int end) {
      const int64_t first = int64_t{begin} * packed.width_, last = int64_t{end} * packed.width_;
      using Element = typename decltype(codec)::Panel::Element;
      if (table.dtype == codec.kDType) {
        const auto* from = static_cast<const Element*>(table.data);
        std::copy(from + first, from + last, to + first);
        return;
      }
      ForEachStrip(table, first, last, [&](int64_t at, int count, const float* values) {
        std::transform(values, values + count, to + at, codec.Encode);
      });
    });
  });
  return packed;
}

}  // namespace diffserve::cpu
