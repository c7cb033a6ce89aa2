// WeightFormat: what the elements of packed weight matrices are. A format is an enumerator here, a
// panel (how its elements lie, for packer and kernel), a codec (weight_codec.h), and in each
// backend that has it an instance of the linear kernel. Plain data, for the per-ISA files too.
#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"

namespace diffserve {

enum class WeightFormat : uint8_t { kFloat32, kBFloat16, kFloat16 };

inline constexpr WeightFormat kWeightFormats[] = {WeightFormat::kFloat32, WeightFormat::kBFloat16,
                                                  WeightFormat::kFloat16};

// A panel holds P = KernelTable::panel_columns neighbouring output features, zero-padded at the end
// of the matrix: [ceil(in_features / kInterleave)][P][kInterleave] elements; those behind
// in_features are zero.
struct Float32Panel {
  using Element = float;
  static constexpr int kInterleave = 1;
};
struct BFloat16Panel {
  using Element = BFloat16;
  static constexpr int kInterleave = 2;  // a pair widens into two vectors by a shift and a mask
};
struct Float16Panel {
  using Element = uint16_t;
  static constexpr int kInterleave = 1;
};

}  // namespace diffserve
