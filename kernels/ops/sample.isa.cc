// SPDX-License-Identifier: Apache-2.0
// The compiler vectorises everything except Keep: no fused multiply-add, no reassociation of
// floats.
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels/ops/sample_arithmetic.h"
#include "kernels/ops/sample_kernel.h"
#include "kernels/ops/token_mask.h"

namespace diffserve::DS_ISA {
namespace {

RowExtent Extent(const float* row, int64_t count) {
  constexpr int64_t kLanes = 32;
  float max[kLanes];
  int32_t nans[kLanes];
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    max[lane] = -__builtin_inff();
    nans[lane] = 0;
  }
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float value = row[i + lane];
      max[lane] = value > max[lane] ? value : max[lane];
      nans[lane] |= value != value;
    }
  }
  for (; i < count; ++i) {
    max[0] = row[i] > max[0] ? row[i] : max[0];
    nans[0] |= row[i] != row[i];
  }
  RowExtent extent = {-__builtin_inff(), false};
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    extent.max = max[lane] > extent.max ? max[lane] : extent.max;
    extent.has_nan = extent.has_nan || nans[lane] != 0;
  }
  return extent;
}

// One word's tokens at a time: most words of a grammar's mask are 0.
void BanUnmasked(float* row, const uint32_t* mask, int64_t count) {
  int64_t i = 0;
  for (; i + kMaskWordBits <= count; i += kMaskWordBits) {
    const uint32_t word = *mask++;
    if (word == ~uint32_t{0}) continue;
    for (int64_t bit = 0; bit < kMaskWordBits; ++bit)
      row[i + bit] = (word >> bit & 1u) != 0 ? row[i + bit] : -__builtin_inff();
  }
  for (int64_t bit = 0; i < count; ++i, ++bit)
    row[i] = (*mask >> bit & 1u) != 0 ? row[i] : -__builtin_inff();
}

bool AnyWithin(const float* values, float least, float most) {
  int32_t any = 0;
  for (int64_t i = 0; i < kSampleGroup; ++i)
    any |= static_cast<int32_t>(values[i] >= least) & static_cast<int32_t>(values[i] <= most);
  return any != 0;
}

void Scale(const float* logits, int64_t count, float max, float inverse_temperature, float* z) {
  for (int64_t i = 0; i < count; ++i)
    z[i] = rounded::Mul(rounded::Sub(logits[i], max), inverse_temperature);
}

// The integer, plus kRoundMass's bits.
[[gnu::always_inline]] inline uint64_t RoundedBits(float unrounded) {
  return __builtin_bit_cast(uint64_t, static_cast<double>(unrounded) + kRoundMass);
}

void Masses(const float* z, int64_t count, uint64_t* masses) {
  float unrounded[kSampleStretch];
  for (int64_t i = 0; i < count; ++i) unrounded[i] = UnroundedMass(z[i]);
  for (int64_t i = 0; i < count; ++i)
    masses[i] = RoundedBits(unrounded[i]) - __builtin_bit_cast(uint64_t, kRoundMass);
}

uint64_t SumOfMasses(const float* z, int64_t count) {
  float unrounded[kSampleStretch];
  for (int64_t i = 0; i < count; ++i) unrounded[i] = UnroundedMass(z[i]);
  uint64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += RoundedBits(unrounded[i]);
  return sum - static_cast<uint64_t>(count) * __builtin_bit_cast(uint64_t, kRoundMass);
}

void Buckets(const float* z, int64_t count, int32_t* buckets) {
  for (int64_t i = 0; i < count; ++i) buckets[i] = SampleBucketOf(z[i]);
}

// Keep over whole vectors. A store beyond the kept tokens overwrites only elements that were
// already read, or that are no tokens.
struct KeptSoFar {
  int64_t next;  // the first token not yet looked at
  int64_t kept;
};

#if defined(__AVX512F__)
KeptSoFar KeepByVectors(float* z, const int32_t* ids, int64_t count, SampleCutoff cutoff,
                        int32_t* kept_ids) {
  const __m512 cutoff_z = _mm512_set1_ps(cutoff.z);
  const __m512i cutoff_id = _mm512_set1_epi32(cutoff.id);
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  int64_t kept = 0, i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m512 next_z = _mm512_loadu_ps(z + i);
    const __m512i next_ids = ids != nullptr
                                 ? _mm512_loadu_si512(ids + i)
                                 : _mm512_add_epi32(lanes,
                                                    _mm512_set1_epi32(static_cast<int32_t>(i)));
    const __mmask16 ties = _mm512_mask_cmple_epi32_mask(
        _mm512_cmp_ps_mask(next_z, cutoff_z, _CMP_EQ_OQ), next_ids, cutoff_id);
    const __mmask16 keep = _mm512_cmp_ps_mask(next_z, cutoff_z, _CMP_GT_OQ) | ties;
    _mm512_storeu_ps(z + kept, _mm512_maskz_compress_ps(keep, next_z));
    _mm512_storeu_si512(kept_ids + kept, _mm512_maskz_compress_epi32(keep, next_ids));
    kept += __builtin_popcount(keep);
  }
  return {i, kept};
}
#elif defined(__AVX2__)
// For each set of lanes: the lane that goes to each place at the front, four bits each.
struct LaneOrders {
  uint32_t of[256];
};
constexpr LaneOrders MakeLaneOrders() {
  LaneOrders orders = {};
  for (uint32_t set = 0; set < 256; ++set) {
    uint32_t place = 0;
    for (uint32_t lane = 0; lane < 8; ++lane) {
      if ((set >> lane & 1) != 0) orders.of[set] |= lane << (4 * place++);
    }
  }
  return orders;
}
constexpr LaneOrders kLaneOrders = MakeLaneOrders();

KeptSoFar KeepByVectors(float* z, const int32_t* ids, int64_t count, SampleCutoff cutoff,
                        int32_t* kept_ids) {
  const __m256 cutoff_z = _mm256_set1_ps(cutoff.z);
  const __m256i cutoff_id = _mm256_set1_epi32(cutoff.id);
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i shifts = _mm256_slli_epi32(lanes, 2);
  int64_t kept = 0, i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 next_z = _mm256_loadu_ps(z + i);
    const __m256i next_ids = ids != nullptr
                                 ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(ids + i))
                                 : _mm256_add_epi32(lanes,
                                                    _mm256_set1_epi32(static_cast<int32_t>(i)));
    const __m256 ties = _mm256_andnot_ps(
        _mm256_castsi256_ps(_mm256_cmpgt_epi32(next_ids, cutoff_id)),
        _mm256_cmp_ps(next_z, cutoff_z, _CMP_EQ_OQ));
    const int keep = _mm256_movemask_ps(
        _mm256_or_ps(_mm256_cmp_ps(next_z, cutoff_z, _CMP_GT_OQ), ties));
    // The permutations use the low three bits of each lane.
    const __m256i order = _mm256_srlv_epi32(
        _mm256_set1_epi32(static_cast<int32_t>(kLaneOrders.of[keep])), shifts);
    _mm256_storeu_ps(z + kept, _mm256_permutevar8x32_ps(next_z, order));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(kept_ids + kept),
                        _mm256_permutevar8x32_epi32(next_ids, order));
    kept += __builtin_popcount(static_cast<uint32_t>(keep));
  }
  return {i, kept};
}
#else
KeptSoFar KeepByVectors(float*, const int32_t*, int64_t, SampleCutoff, int32_t*) { return {0, 0}; }
#endif

int64_t Keep(float* z, const int32_t* ids, int64_t count, SampleCutoff cutoff, int32_t* kept_ids) {
  auto [i, kept] = KeepByVectors(z, ids, count, cutoff, kept_ids);
  for (; i < count; ++i) {
    const float next_z = z[i];
    const int32_t next_id = ids != nullptr ? ids[i] : static_cast<int32_t>(i);
    z[kept] = next_z;
    kept_ids[kept] = next_id;
    kept += static_cast<int64_t>((next_z > cutoff.z) |
                                 ((next_z == cutoff.z) & (next_id <= cutoff.id)));
  }
  return kept;
}

}  // namespace
}  // namespace diffserve::DS_ISA

namespace diffserve {

const SampleLoops& SampleLoops::DS_ISA() {
  static constexpr SampleLoops kKernels = {.extent = DS_ISA::Extent,
                                           .ban_unmasked = DS_ISA::BanUnmasked,
                                           .any_within = DS_ISA::AnyWithin,
                                           .scale = DS_ISA::Scale,
                                           .masses = DS_ISA::Masses,
                                           .sum_of_masses = DS_ISA::SumOfMasses,
                                           .buckets = DS_ISA::Buckets,
                                           .keep = DS_ISA::Keep};
  return kKernels;
}

}  // namespace diffserve
