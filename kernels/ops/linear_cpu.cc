#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/kernel_table.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/linear_kernel.h"

namespace diffserve {
namespace {

int64_t RowsOf(const LinearPart& part) {
  return part.row_order.empty() ? part.weight.shape[0]
                                : static_cast<int64_t>(part.row_order.size());
}

// One output feature's origin.
struct SourceRow {
  const LinearPart* part;
  int64_t row;  // of the part's tensors
};

std::vector<SourceRow> SourceRows(std::span<const LinearPart> parts) {
  std::vector<SourceRow> rows;
  for (const LinearPart& part : parts) {
    for (int64_t i = 0; i < RowsOf(part); ++i) {
      const int64_t row = part.row_order.empty() ? i : part.row_order[static_cast<size_t>(i)];
      DS_CHECK(row >= 0 && row < part.weight.shape[0],
               "row_order names a row that the weight does not have");
      rows.push_back({&part, row});
    }
  }
  return rows;
}

constexpr int kPackDepth = 512;  // in_features handled at a time; even

// Writes in_features [k, k + depth) of `rows` (at most `columns` of them) into one panel; see
// linear_kernel.h.
struct PanelWriter {
  std::span<const SourceRow> rows;
  int columns;
  int64_t in_features;
  std::vector<float> strip = std::vector<float>(kPackDepth);

  template <typename Store>
  void Read(int64_t k, int depth, Store store) {
    for (size_t column = 0; column < rows.size(); ++column) {
      CopyToFloat(rows[column].part->weight, rows[column].row * in_features + k, depth,
                  strip.data());
      for (int i = 0; i < depth; ++i)
        store(static_cast<int>(column), i, strip[static_cast<size_t>(i)]);
    }
  }
  void Write(float* panel) {
    for (int64_t k = 0; k < in_features; k += kPackDepth) {
      const int depth = static_cast<int>(std::min<int64_t>(kPackDepth, in_features - k));
      float* to = panel + k * columns;
      Read(k, depth, [&](int column, int i, float value) {
        to[static_cast<int64_t>(i) * columns + column] = value;
      });
    }
  }
  void Write(uint16_t* panel) {
    for (int64_t k = 0; k < in_features; k += kPackDepth) {
      const int depth = static_cast<int>(std::min<int64_t>(kPackDepth, in_features - k));
      uint16_t* to = panel + k * columns;
      Read(k, depth, [&](int column, int i, float value) {
        to[(static_cast<int64_t>(i / 2) * columns + column) * 2 + i % 2] = FloatToBFloat16(value);
      });
    }
  }
};

}  // namespace

PackedLinear::PackedLinear(std::span<const LinearPart> parts, DType dtype, CpuIsa isa,
                           ThreadPool& pool)
    : dtype_(dtype), isa_(isa) {
  DS_CHECK(!parts.empty() && dtype != DType::kFloat16, "packed weights are float32 or bfloat16");
  const std::vector<SourceRow> rows = SourceRows(parts);
  out_features_ = static_cast<int>(rows.size());
  in_features_ = static_cast<int>(parts[0].weight.shape[1]);
  bool has_bias = false;
  for (const LinearPart& part : parts) {
    DS_CHECK(part.weight.shape[1] == in_features_,
             "the parts of a linear layer differ in in_features");
    has_bias = has_bias || part.bias.data != nullptr;
  }
  if (has_bias) {
    for (const SourceRow& row : rows)
      bias_.push_back(row.part->bias.data != nullptr ? row.part->bias.At(row.row) : 0.0f);
  }

  const int columns = KernelsFor(isa).panel_columns;
  const int num_panels = (out_features_ + columns - 1) / columns;
  const int64_t depth = dtype == DType::kBFloat16 ? (static_cast<int64_t>(in_features_) + 1) / 2 * 2
                                                  : in_features_;
  const int64_t panel_elements = depth * columns;
  panels_ = Buffer(static_cast<size_t>(num_panels * panel_elements) * SizeOf(dtype));
  pool.Run([&](int worker) {
    const Share share = ShareOf(num_panels, worker, pool.num_threads());
    for (int panel = share.begin; panel < share.end; ++panel) {
      const size_t first = static_cast<size_t>(panel) * static_cast<size_t>(columns);
      const size_t count = std::min(static_cast<size_t>(columns), rows.size() - first);
      PanelWriter writer{.rows = std::span(rows).subspan(first, count),
                         .columns = columns,
                         .in_features = in_features_};
      if (dtype == DType::kBFloat16) {
        writer.Write(panels_.as<uint16_t>() + panel * panel_elements);
      } else {
        writer.Write(panels_.as<float>() + panel * panel_elements);
      }
    }
  });
}

namespace cpu {

void Linear(const PackedLinear& weight, const LinearArgs& args, ThreadPool& pool) {
  if (args.rows == 0) return;
  const KernelTable& kernels = KernelsFor(weight.isa());
  const int num_panels = (weight.out_features() + kernels.panel_columns - 1) /
                         kernels.panel_columns;
  const auto slice = [&](int worker, int num_workers) {
    const Share share = ShareOf(num_panels, worker, num_workers);
    kernels.linear({.panels = weight.panels(),
                    .is_bf16 = weight.dtype() == DType::kBFloat16,
                    .out_features = weight.out_features(),
                    .in_features = weight.in_features(),
                    .bias = weight.bias(),
                    .x = args.x,
                    .rows = args.rows,
                    .y = args.y,
                    .y_stride = args.y_stride != 0 ? args.y_stride : weight.out_features(),
                    .accumulate = args.accumulate,
                    .panel_begin = share.begin,
                    .panel_end = share.end});
  };
  constexpr int64_t kMultiplyAddsWorthWaking = 32768;
  if (static_cast<int64_t>(weight.out_features()) * weight.in_features() * args.rows <
      kMultiplyAddsWorthWaking)
    return slice(0, 1);
  pool.Run([&](int worker) { slice(worker, pool.num_threads()); });
}

}  // namespace cpu
}  // namespace diffserve
