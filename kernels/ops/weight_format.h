// SPDX-License-Identifier: Apache-2.0
// WeightFormat: the contents of packed weight matrices. A format is an enumerator here, a panel
// (the order of its elements, for packer and kernel), a codec (weight_codec.h), and an instance of
// the linear kernel in each backend that has it. Plain data, for the per-ISA files too.
#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"

namespace diffserve {

enum class WeightFormat : uint8_t { kFloat32, kBFloat16, kFloat16, kInt8, kInt4, kFp8E4M3 };

// Formats whose elements are independent numbers; only linear layers can have the others. kFp8E4M3
// is a device's: weight = scale[output feature] * code, and so are cuBLASLt's activations by token.
inline constexpr WeightFormat kFloatFormats[] = {WeightFormat::kFloat32, WeightFormat::kBFloat16,
                                                 WeightFormat::kFloat16};
inline constexpr WeightFormat kQuantizedFormats[] = {WeightFormat::kInt8, WeightFormat::kInt4};
inline constexpr WeightFormat kWeightFormats[] = {WeightFormat::kFloat32, WeightFormat::kBFloat16,
                                                  WeightFormat::kFloat16, WeightFormat::kInt8,
                                                  WeightFormat::kInt4};

constexpr bool IsQuantized(WeightFormat format) { return format >= WeightFormat::kInt8; }

// A panel holds P = LinearKernels::panel_columns neighbouring output features, zero-padded at the
// end of the matrix: [ceil(in_features / kInterleave)][P][kInterleave] elements. Those beyond
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

// Quantised formats: in_features are cut into groups of kQuantGroup, and so are the activations
// that they multiply. A group of products is summed in integers.
inline constexpr int kQuantGroup = 64;
constexpr int64_t NumQuantGroups(int64_t in_features) {
  return (in_features + kQuantGroup - 1) / kQuantGroup;
}

// weight = scale[output feature] * (code - kZero). A panel is [groups][kQuantGroup / 4][P][4]
// codes.
struct Int8Panel {
  static constexpr int kZero = 128;
  static constexpr int kCodeMax = 127;  // code - kZero is within +-kCodeMax
  static constexpr int64_t GroupBytes(int columns) { return int64_t{kQuantGroup} * columns; }
  // Offset of the code of a feature of the group.
  static constexpr int64_t CodeAt(int columns, int column, int feature) {
    return (int64_t{feature / 4} * columns + column) * 4 + feature % 4;
  }
};

// weight = scale[group][output feature] * (code - kZero), scales in float16. A panel is groups of
// [kQuantGroup / 8][P][4] bytes and [P] scales. The lower half of byte i of quad q is feature 8 q +
// i, the upper half feature 8 q + 4 + i.
struct Int4Panel {
  static constexpr int kZero = 8;
  static constexpr int64_t ScalesAt(int columns) { return int64_t{kQuantGroup / 2} * columns; }
  static constexpr int64_t GroupBytes(int columns) {
    return ScalesAt(columns) + int64_t{2} * columns;
  }
  static constexpr int64_t CodeAt(int columns, int column, int feature) {
    return (int64_t{feature / 8} * columns + column) * 4 + feature % 4;
  }
  static constexpr int CodeShift(int feature) { return feature % 8 < 4 ? 0 : 4; }
};

}  // namespace diffserve
