// SPDX-License-Identifier: Apache-2.0
// The tolerance of attention kernels. With float32 activations it is the table of
// kernel_tolerance.h. With bfloat16 activations it is a multiple of the reference's own error when
// it rounds to bfloat16 what such a kernel has to round.
#pragma once

#include <vector>

#include "tests/testing/kernels/attention_batch.h"

namespace diffserve::testing {

struct Errors {
  double max = 0;
  double rms = 0;
};
Errors ErrorsOf(const std::vector<float>& values, const std::vector<float>& expected);

// `times` and `rms_times`: of the rounded reference's own largest error and of its root of the mean
// square, with bfloat16 activations.
void ExpectLikeReference(AttentionBatch& batch, const std::vector<float>& out,
                         double times = kAttentionRoundingTimes, double rms_times = 1.5);

}  // namespace diffserve::testing
