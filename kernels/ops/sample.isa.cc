// Left to the compiler to vectorise: no fused multiply-add, no reassociation of floats.
#include "kernels/ops/sample_arithmetic.h"
#include "kernels/ops/sample_kernel.h"

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

// The integer, and kRoundMass's bits.
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

}  // namespace

extern const SampleLoops kSampleLoops;
constinit const SampleLoops kSampleLoops = {.extent = Extent,
                                            .any_within = AnyWithin,
                                            .scale = Scale,
                                            .masses = Masses,
                                            .sum_of_masses = SumOfMasses,
                                            .buckets = Buckets};

}  // namespace diffserve::DS_ISA
