// SPDX-License-Identifier: Apache-2.0
#include "kernels/ops/weight_codec.h"
#include "kernels/ops/weight_packer.h"
#include "tests/testing/kernels/kernel_levels.h"
#include "tests/testing/kernels/op_backends.h"
#include "tests/testing/kernels/stored_values.h"

namespace diffserve {
namespace testing {
namespace {

std::vector<float> Lookup(WeightFormat format, const TensorView& table, EmbeddingLookupArgs args,
                          const std::vector<int32_t>& drawn) {
  ThreadPool pool({.num_threads = 3, .pin = false});
  cpu::WeightPacker packer(format, format, testing::EightLanes(), pool);
  const cpu::EmbeddingTable packed = packer.Table(table);
  std::vector<float> out(static_cast<size_t>(args.num_tokens * packed.width()));
  args.out = out.data();
  args.drawn = drawn.data();
  cpu::EmbeddingLookup(packed, args, pool);
  return out;
}

}  // namespace

std::vector<EmbeddingBackend> EmbeddingBackends() {
  std::vector<EmbeddingBackend> backends;
  for (WeightFormat format : kFloatFormats) {
    backends.push_back(
        {std::string(NameOf(format)), format,
         [=](const TensorView& table, const EmbeddingLookupArgs& args,
             const std::vector<int32_t>& drawn) { return Lookup(format, table, args, drawn); }});
  }
  return backends;
}

}  // namespace testing

TEST(EmbeddingLookupDeathTest, TokenOutsideTheVocabularyIsABug) {
  ThreadPool pool({.num_threads = 1});
  const testing::StoredTensor table({0, 1}, {2, 1});
  cpu::WeightPacker packer(WeightFormat::kFloat32, WeightFormat::kFloat32, testing::EightLanes(),
                           pool);
  const cpu::EmbeddingTable packed = packer.Table(table.view());
  const int32_t token = 2;
  float out;
  EXPECT_DEATH(cpu::EmbeddingLookup(packed, {.tokens = &token, .out = &out, .num_tokens = 1}, pool),
               "outside the vocabulary");
}

}  // namespace diffserve
