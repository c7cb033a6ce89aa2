// SPDX-License-Identifier: Apache-2.0
// The loops of sampling over a row of logits, compiled for each level. They do the same operations
// on each element, each rounded separately, and sum integers, so every level gives the same bits.
// Plain data only: see simd.h.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"

namespace diffserve {

struct RowExtent {
  float max;  // -infinity for a row without numbers
  bool has_nan;
};

// A position in the order of tokens (z descending, then id ascending). Every filter keeps all
// tokens up to one such position.
struct SampleCutoff {
  float z;
  int32_t id;
};

struct SampleLoops {
  RowExtent (*extent)(const float* row, int64_t count);
  // row[t] = -infinity where t is not in the mask (token_mask.h).
  void (*ban_unmasked)(float* row, const uint32_t* mask, int64_t count);
  // Whether any of kSampleGroup values is within [least, most].
  bool (*any_within)(const float* values, float least, float most);
  // z[i] = (logits[i] - max) * inverse_temperature.
  void (*scale)(const float* logits, int64_t count, float max, float inverse_temperature, float* z);
  // MassOf (sample_arithmetic.h) of each of at most kSampleStretch z, and their sum.
  void (*masses)(const float* z, int64_t count, uint64_t* masses);
  uint64_t (*sum_of_masses)(const float* z, int64_t count);
  void (*buckets)(const float* z, int64_t count, int32_t* buckets);  // SampleBucketOf
  // Moves the tokens up to `cutoff` to the front, in their order; returns their number. `ids`:
  // kept_ids, or nullptr for 0, 1, ...
  int64_t (*keep)(float* z, const int32_t* ids, int64_t count, SampleCutoff cutoff,
                  int32_t* kept_ids);

  static const SampleLoops &plain(), &avx2(), &avx512(), &neon();
  [[gnu::weak]] static const SampleLoops& paired16();
};

// Values tested together, to skip them if there is nothing to do.
inline constexpr int64_t kSampleGroup = 64;
// Tokens per stretch, whose intermediate values stay in the L1 cache.
inline constexpr int64_t kSampleStretch = 256;

// Tokens are sorted into buckets by z first, so that only a few need exact order.
inline constexpr float kBucketsPerUnit = 32;
inline constexpr int32_t kLastBucket = 30 * 32;  // all z of mass 0

DIFFSERVE_HOST_DEVICE int32_t SampleBucketOf(float z) {
  const float bucket = -z * kBucketsPerUnit;
  constexpr float kLast = kLastBucket;
  return static_cast<int32_t>(bucket < kLast ? bucket : kLast);
}

}  // namespace diffserve
