#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/base/kernel_table.h"
#include "kernels/ops/weight_codec.h"
#include "kernels/ops/weight_packer.h"

namespace diffserve::cpu {
namespace {

constexpr int kStrip = 512;  // values handled at a time; a multiple of every kInterleave

// use(begin, count, values) for each strip of elements [begin, end) of the tensor, as float32.
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
  int64_t row;  // of the part's tensors
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

// Writes a panel of `columns` columns, of which `rows` has the first.
template <typename Codec>
void WritePanel(std::span<const SourceRow> rows, int columns, int64_t in_features,
                typename Codec::Panel::Element* panel) {
  constexpr int kInterleave = Codec::Panel::kInterleave;
  for (size_t column = 0; column < rows.size(); ++column) {
    const int64_t first = rows[column].row * in_features;
    ForEachStrip(
        rows[column].part->weight, first, first + in_features,
        [&](int64_t begin, int count, const float* values) {
          auto* to = panel + (begin - first) * columns;
          for (int i = 0; i < count; ++i) {
            to[(static_cast<int64_t>(i / kInterleave) * columns + static_cast<int64_t>(column)) *
                   kInterleave +
               i % kInterleave] = Codec::Encode(values[i]);
          }
        });
  }
}

}  // namespace

void WeightPacker::CheckRange(const TensorView& tensor) {
  if (format_ != WeightFormat::kFloat16 || tensor.dtype == DType::kFloat16 || !status_.ok()) return;
  const int64_t num_rows = tensor.shape[0], width = tensor.num_elements() / num_rows;
  std::atomic<int64_t> outside{-1};
  RunShares(pool_, static_cast<int>(num_rows), /*worth_waking=*/true, [&](int begin, int end) {
    ForEachStrip(tensor, begin * width, end * width,
                 [&](int64_t first, int count, const float* values) {
                   const int64_t found = FindOutsideFloat16({values, static_cast<size_t>(count)});
                   if (found >= 0) outside = first + found;
                 });
  });
  if (outside < 0) return;
  status_ = InvalidArgument(tensor.name + ": element [" + std::to_string(outside / width) + ", " +
                            std::to_string(outside % width) + "] is " +
                            std::to_string(tensor.At(outside)) +
                            ", and float16 holds at most 65504");
}

PackedLinear WeightPacker::Linear(std::span<const LinearPart> parts, LinearOutput) {
  for (const LinearPart& part : parts) CheckRange(part.weight);
  PackedLinear packed;
  if (parts.empty() || !status_.ok()) return packed;
  const std::vector<SourceRow> rows = SourceRows(parts);
  packed.out_features_ = static_cast<int>(rows.size());
  packed.in_features_ = static_cast<int>(parts[0].weight.shape[1]);
  packed.format_ = format_;
  packed.isa_ = isa_;
  packed.bias_ = BiasOf(rows);
  WithCodec(format_, [&](auto codec) {
    using Codec = decltype(codec);
    using Element = typename Codec::Panel::Element;
    constexpr int kInterleave = Codec::Panel::kInterleave;
    const int columns = KernelsFor(isa_).panel_columns;
    const int num_panels = (packed.out_features_ + columns - 1) / columns;
    const int64_t depth = (static_cast<int64_t>(packed.in_features_) + kInterleave - 1) /
                          kInterleave * kInterleave;
    packed.panels_ = Buffer(static_cast<size_t>(num_panels * depth * columns) * sizeof(Element));
    RunShares(pool_, num_panels, /*worth_waking=*/true, [&](int begin, int end) {
      for (int panel = begin; panel < end; ++panel) {
        const size_t first = static_cast<size_t>(panel) * static_cast<size_t>(columns);
        const size_t count = std::min(static_cast<size_t>(columns), rows.size() - first);
        WritePanel<Codec>(std::span(rows).subspan(first, count), columns, packed.in_features_,
                          packed.panels_.as<Element>() + panel * depth * columns);
      }
    });
  });
  return packed;
}

EmbeddingTable WeightPacker::Table(const TensorView& table) {
  CheckRange(table);
  EmbeddingTable packed;
  if (!status_.ok()) return packed;
  packed.vocab_ = static_cast<int>(table.shape[0]);
  packed.width_ = static_cast<int>(table.shape[1]);
  packed.format_ = format_;
  packed.memory_ = Buffer(WeightBytes(format_, packed.vocab_, packed.width_));
  WithCodec(format_, [&](auto codec) {
    auto* to = packed.memory_.as<typename decltype(codec)::Panel::Element>();
    RunShares(pool_, packed.vocab_, /*worth_waking=*/true, [&](int begin, int end) {
      ForEachStrip(table, int64_t{begin} * packed.width_, int64_t{end} * packed.width_,
                   [&](int64_t first, int count, const float* values) {
                     std::transform(values, values + count, to + first, codec.Encode);
                   });
    });
  });
  return packed;
}

}  // namespace diffserve::cpu
