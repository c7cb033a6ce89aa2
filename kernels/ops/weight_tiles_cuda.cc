// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "kernels/ops/weight_packer.h"
#include "kernels/ops/weight_tiles.h"

namespace diffserve::cpu {
namespace {

// One output feature of a group, from the CPU's panel to the device's tile.
void CopyInt8(const uint8_t* panel_group, int columns, int column, int row, uint8_t* tile) {
  for (int i = 0; i < kQuantGroup; ++i) {
    tile[Int8Tile::CodeAt(row, i)] = panel_group[Int8Panel::CodeAt(columns, column, i)];
  }
}
void CopyInt4(const uint8_t* panel_group, int columns, int column, int row, uint8_t* tile) {
  for (int i = 0; i < kQuantGroup; ++i) {
    const int code = panel_group[Int4Panel::CodeAt(columns, column, i)] >> Int4Panel::CodeShift(i) &
                     15;
    uint8_t& to = tile[Int4Tile::CodeAt(row, i)];
    to = static_cast<uint8_t>(to | code << Int4Tile::CodeShift(i));
  }
  std::memcpy(tile + Int4Tile::ScaleAt(row),
              panel_group + Int4Panel::ScalesAt(columns) + 2 * column, sizeof(uint16_t));
}

}  // namespace

void WriteWeightTiles(const PackedLinear& weight, int64_t tile, std::byte* to) {
  auto* codes = reinterpret_cast<uint8_t*>(to);
  const WeightFormat format = weight.format();
  const bool is_int8 = format == WeightFormat::kInt8;
  const int columns = PanelColumns(weight.isa());
  const int64_t groups = NumQuantGroups(weight.in_features());
  const int64_t group_bytes = is_int8 ? Int8Panel::GroupBytes(columns)
                                      : Int4Panel::GroupBytes(columns);
  const int64_t first = tile * kTileRows;
  const int64_t rows = std::clamp<int64_t>(weight.out_features() - first, 0, kTileRows);
  std::memset(to, 0, static_cast<size_t>(groups * TileBytes(format)));
  for (int64_t group = 0; group < groups; ++group) {
    for (int row = 0; row < rows; ++row) {
      const int64_t panel = (first + row) / columns;
      const uint8_t* from = static_cast<const uint8_t*>(weight.panels()) +
                            panel * weight.panel_bytes() + group * group_bytes;
      const int column = static_cast<int>((first + row) % columns);
      (is_int8 ? CopyInt8 : CopyInt4)(from, columns, column, row,
                                      codes + group * TileBytes(format));
    }
  }
}

}  // namespace diffserve::cpu
