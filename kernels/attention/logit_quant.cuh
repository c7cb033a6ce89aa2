// SPDX-License-Identifier: Apache-2.0
// Quantisation of logits (logit_quant.h) on raw scores, q k without the scale, in registers. It
// first needs the extent of the scores that share their codes: the largest magnitude, or with
// kAnchored the largest score.
#pragma once

#include <cuda_runtime.h>

#include "kernels/attention/logit_quant.h"
#include "kernels/base/cuda/ptx.cuh"

namespace diffserve::cuda {

struct ScoreQuant {
  LogitScale kind;
  float levels;           // n, or m with kAnchored
  float step;             // between codes: in scores with kAnchored, else as a share of the extent
  float codes_per_score;  // with kAnchored

  // REQUIRES: quant.is_on().
  static ScoreQuant Of(const LogitQuant& quant, float scale) {
    const float levels = static_cast<float>(quant.levels());
    const float range = quant.scale == LogitScale::kAnchored ? kLogitReach / scale : 1.0f;
    return {quant.scale, levels, range / levels, levels / range};
  }

  __device__ __forceinline__ bool is_anchored() const { return kind == LogitScale::kAnchored; }
  // False: each tile has its own extent.
  __device__ __forceinline__ bool needs_row() const { return kind != LogitScale::kTile; }
  __device__ __forceinline__ float NoExtent() const {
    return is_anchored() ? -__builtin_huge_valf() : 0.0f;
  }
  // May miss a NaN, which remains a NaN in the scores.
  __device__ __forceinline__ float Widened(float extent, float score) const {
    return fmaxf(extent, is_anchored() ? score : fabsf(score));
  }
};

// x + 1.5 * 2^23 is rounded to a whole number, halves to even. |x| is below 2^22.
__device__ __forceinline__ float RoundToNearest(float x) {
  constexpr float kShift = 12582912.0f;
  return x + kShift - kShift;
}

// The codes of scores with one extent.
struct ScoreCodes {
  float extent;
  float inverse;  // with kAnchored: codes per score
  float step;     // scores per code
  float levels;
  bool is_anchored;

  __device__ __forceinline__ static ScoreCodes Of(const ScoreQuant& quant, float extent) {
    if (quant.is_anchored())
      return {extent, quant.codes_per_score, -quant.step, quant.levels, true};
    const float inverse = extent > kMinExtent ? Reciprocal(extent) : 0.0f;
    return {extent, inverse, extent * quant.step, quant.levels, false};
  }

  // The quantised score; with kAnchored minus the extent.
  __device__ __forceinline__ float Quantised(float score) const {
    if (is_anchored) {
      const float distance = (extent - score) * inverse;
      return RoundToNearest(distance > levels ? levels : distance) * step;  // a NaN stays a NaN
    }
    // Adding the quotient's error makes exact halves round as halves.
    const float scaled = score * levels;
    const float quotient = scaled * inverse;
    const float rest = fmaf(-quotient, extent, scaled);
    return RoundToNearest(fmaf(rest, inverse, quotient)) * step;
  }

 private:
  static constexpr float kMinExtent = 0x1p-100f;  // smaller ones count as 0
};

}  // namespace diffserve::cuda
