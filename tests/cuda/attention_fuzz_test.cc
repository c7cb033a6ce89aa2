// SPDX-License-Identifier: Apache-2.0
// Random shapes of every attention kernel against the double-precision reference, for
// DIFFSERVE_FUZZ_SECONDS: by default 2 on a GPU, and six fixed seeds on the shim. A failure prints
// its seed; DIFFSERVE_FUZZ_SEED=N starts there.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>

#include "tests/cuda/attention_on_device.h"
#include "tests/testing/kernels/attention_rounding.h"
#include "tests/testing/kernels/attention_specs.h"

namespace diffserve {
namespace {

using testing::ImageBatch;
using testing::kHasGpu;
using testing::SequenceShape;

struct FuzzCase {
  DiffSpec spec;
  std::vector<SequenceShape> shapes;
  float lambda = 0;
  float out_scale = 0;
  LogitQuant logits;
  int window = 0;
};

class CaseMaker {
 public:
  explicit CaseMaker(uint32_t seed) : generator_(seed) {}

  FuzzCase Make() {
    FuzzCase made = {Spec(),
                     {},
                     static_cast<float>(Below(200)) / 100 - 0.5f,
                     0.5f + static_cast<float>(Below(3)) / 4,
                     Logits(),
                     Below(2) == 0 ? 0 : 1 + Below(kHasGpu ? 1500 : 300)};
    // The reference's work, which all shapes share: query heads x slots x width.
    int64_t budget = kHasGpu ? 40'000'000 : 1'000'000;
    const int64_t per_pair = int64_t{made.spec.num_q1_heads + made.spec.num_q2_heads} *
                             (made.spec.head_dim + made.spec.v_dim);
    const int count = 1 + Below(kHasGpu ? 12 : 3);
    for (int i = 0; i < count; ++i) {
      SequenceShape shape = {Length(), Below(8) == 0 ? 0 : Below(3) > 0 ? 1 : Rows()};
      while (shape.num_tokens > 1 &&
             per_pair * shape.num_tokens * (shape.position + shape.num_tokens) > budget)
        shape.num_tokens /= 2;
      if (per_pair * shape.num_tokens * (shape.position + shape.num_tokens) > budget)
        shape.position %= 64;
      budget = std::max<int64_t>(
          0, budget - per_pair * shape.num_tokens * (shape.position + shape.num_tokens));
      made.shapes.push_back(shape);
    }
    return made;
  }

 private:
  int Below(int end) { return static_cast<int>(generator_() % static_cast<uint32_t>(end)); }
  template <typename T>
  T OneOf(std::initializer_list<T> values) {
    return *(values.begin() + Below(static_cast<int>(values.size())));
  }

  LogitQuant Logits() {
    const LogitQuant quant = {2 + Below(7),
                              OneOf({LogitScale::kRow, LogitScale::kTile, LogitScale::kAnchored})};
    return Below(3) == 0 ? LogitQuant{} : quant;
  }
  DiffSpec Spec() {
    for (;;) {
      DiffSpec spec;
      spec.head_dim = OneOf({16, 32, 48, 64, 64, 80, 96, 112, 128, 128, 256});
      spec.k_maps = 1 + Below(2);
      spec.v_dim = spec.head_dim * (1 + Below(2));
      spec.num_kv_groups = 1 + Below(3);
      spec.num_q1_heads = spec.num_kv_groups * OneOf({1, 2, 3, 4, 5, 8, 9, 16, 17});
      const int signal_per_noise = spec.num_q1_heads % 4 == 0 && Below(3) == 0 ? 4 : 1;
      spec.num_q2_heads = spec.k_maps == 1 && Below(2) == 0 ? 0
                                                            : spec.num_q1_heads / signal_per_noise;
      spec.lambda_kind = spec.num_q2_heads == 0
                             ? LambdaKind::kNone
                             : OneOf({LambdaKind::kPerLayer, LambdaKind::kPerTokenHead});
      spec.sub_norm = OneOf({SubNorm::kNone, SubNorm::kPlain, SubNorm::kAffine});
      if (cuda::DiffAttentionUnsupported(spec, cuda::ImageFormat(spec)) == nullptr) return spec;
    }
  }
  // Near the edges of strips, pages and splits, or anywhere.
  int Length() {
    const int near = OneOf({0, 16, 64, 128, 256, 512, 576, 1024}) - 2 + Below(5);
    return std::max(0, Below(3) == 0 ? Below(kHasGpu ? 3000 : 200) : kHasGpu ? near : near % 600);
  }
  int Rows() { return kHasGpu ? 1 + Below(300) : 1 + Below(20); }

  std::mt19937 generator_;
};

class AttentionFuzzTest : public testing::OnDeviceTest {};

TEST_F(AttentionFuzzTest, RandomShapesMatchTheReference) {
  const char* seconds = std::getenv("DIFFSERVE_FUZZ_SECONDS");
  const char* first = std::getenv("DIFFSERVE_FUZZ_SEED");
  const std::chrono::duration<double> time(seconds == nullptr ? 2.0 : std::atof(seconds));
  const auto end = std::chrono::steady_clock::now() + time;
  const uint32_t begin = first == nullptr ? 1 : static_cast<uint32_t>(std::atol(first));
  uint32_t seed = begin;
  do {
    SCOPED_TRACE("DIFFSERVE_FUZZ_SEED=" + std::to_string(seed));
    const FuzzCase made = CaseMaker(seed).Make();
    ImageBatch batch(made.spec, made.shapes, seed, seed);
    batch.lambda = made.lambda;
    batch.out_scale = made.out_scale;
    batch.logit_quant = made.logits;
    if (made.logits.is_on()) batch.MakeLogitsExact();
    batch.window = made.window;
    batch.ForgetPagesBehindWindow();
    // Among thousands of shapes some have few outputs, on which the rounded reference's largest
    // error is small by chance.
    for (bool bulk_copies : {true, false}) {
      testing::ExpectLikeReference(batch, testing::Decode(batch, bulk_copies), 3);
      testing::ExpectLikeReference(batch, testing::Prefill(batch, bulk_copies), 3);
    }
    ++seed;
  } while (!HasFailure() && (kHasGpu || seconds != nullptr ? std::chrono::steady_clock::now() < end
                                                           : seed < begin + 6));
  RecordProperty("shapes", static_cast<int>(seed - begin));
  std::printf("%u random shapes, from seed %u\n", seed - begin, begin);
}

}  // namespace
}  // namespace diffserve
