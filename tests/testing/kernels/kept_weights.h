// SPDX-License-Identifier: Apache-2.0
// Weights as a quantised format keeps them.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "kernels/ops/weight_codec.h"

namespace diffserve::testing {

// `row`: one output feature's, or, with kFp8E4M3, one token's activations. REQUIRES:
// IsQuantized(format).
inline std::vector<float> KeptWeights(WeightFormat format, std::span<const float> row) {
  std::vector<float> kept;
  if (format == WeightFormat::kFp8E4M3) {
    const float scale = Fp8WeightCodec::ScaleOf(row);
    for (const float value : row)
      kept.push_back(Fp8WeightCodec::Decode(Fp8WeightCodec::Encode(value, scale), scale));
    return kept;
  }
  const float row_scale = Int8WeightCodec::ScaleOf(row);
  for (size_t begin = 0; begin < row.size(); begin += kQuantGroup) {
    const auto group = row.subspan(begin, std::min<size_t>(kQuantGroup, row.size() - begin));
    const uint16_t group_scale = Int4WeightCodec::ScaleOf(group);
    for (const float value : group) {
      kept.push_back(
          format == WeightFormat::kInt8
              ? Int8WeightCodec::Decode(Int8WeightCodec::Encode(value, row_scale), row_scale)
              : Int4WeightCodec::Decode(Int4WeightCodec::Encode(value, group_scale), group_scale));
    }
  }
  return kept;
}

}  // namespace diffserve::testing
