// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/models/hybrid_fixture.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace diffserve::testing {

HybridTest::HybridTest() {
  options_.model_dir = GoldenCasesDir() + "/phi4flash_stored_lm_head_shards";
  options_.limits.num_tokens = 320;
  options_.limits.num_sequences = 8;
  // There are twice as many of the one as of the other: a wrong table reaches into other layers.
  for (int i = 0; i < kSequences * kPages; ++i) {
    pages_.push_back(2 * ((3 * i + 2) % (kSequences * kPages)) + 1);
    window_pages_.push_back(kSequences * kPages - 1 - i);
  }
}

std::unique_ptr<Model> HybridTest::Load() {
  Result<std::unique_ptr<Model>> model = Model::Load(options_, pool_);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.ok() ? std::move(*model) : nullptr;
}

KvCache HybridTest::Cache(const Model& model) const {
  return model
      .MakeUniformKvCache(FormatOf(model), {.num_pages = 2 * kSequences * kPages,
                                            .num_window_pages = kSequences * kPages,
                                            .num_states = 9})
      .value();
}

int32_t HybridTest::TokenOf(int sequence, int position) const {
  return (11 * sequence + 5 * position + position * position / 7) % vocab_;
}

Batch HybridTest::BatchOf(const std::vector<Part>& parts) const {
  Batch batch;
  for (const Part& part : parts) {
    const auto first_row = static_cast<int>(batch.tokens.size());
    batch.sequences.push_back({first_row, part.end - part.begin, part.begin,
                               &pages_[static_cast<size_t>(kPages * part.sequence)],
                               &window_pages_[static_cast<size_t>(kPages * part.sequence)]});
    for (int i = part.begin; i < part.end; ++i) batch.tokens.push_back(TokenOf(part.sequence, i));
    for (int i : part.wanted) batch.logit_rows.push_back(first_row + i - part.begin);
    batch.num_prompt_tokens.push_back(
        std::clamp(kGeneratedFrom[part.sequence] - part.begin, 0, part.end - part.begin));
    batch.states.push_back(part.state);
  }
  return batch;
}

std::vector<float> HybridTest::Step(Model& model, KvCache& kv,
                                    const std::vector<Part>& parts) const {
  const Batch batch = BatchOf(parts);
  const Status status = model.Forward(batch, kv);
  EXPECT_TRUE(status.ok()) << status.message();
  const std::span<const float> logits =
      model.Logits(0, static_cast<int>(batch.logit_rows.size())).value();
  return {logits.begin(), logits.end()};
}

std::vector<float> HybridTest::Alone(Model& model, int sequence) const {
  KvCache kv = Cache(model);
  Part part = {sequence, 0, kLength, std::vector<int>(kLength), {0, 0}};
  std::iota(part.wanted.begin(), part.wanted.end(), 0);
  return Step(model, kv, {part});
}

void HybridTest::ExpectTheBitsAlone(Model& model, const std::vector<Part>& parts,
                                    const std::vector<float>& found) {
  const auto vocab = static_cast<size_t>(vocab_);
  size_t at = 0;
  for (const Part& part : parts) {
    std::vector<float>& alone = alone_[part.sequence];
    if (alone.empty()) alone = Alone(model, part.sequence);
    for (int token : part.wanted) {
      ASSERT_LE((at + 1) * vocab, found.size());
      EXPECT_TRUE(std::equal(alone.begin() + token * vocab_, alone.begin() + (token + 1) * vocab_,
                             found.begin() + static_cast<long>(at++ * vocab)))
          << "sequence " << part.sequence << ", token " << token;
    }
  }
  EXPECT_EQ(found.size(), at * vocab);
}

void HybridTest::ExpectTheBitsAloneOfSomeTokens() {
  const std::unique_ptr<Model> model = Load();
  ASSERT_NE(model, nullptr);
  KvCache kv = Cache(*model);
  const std::vector<Part> steps[] = {
      // A prompt's last token; a prompt with a token in its midst, and what it generated behind;
      // nothing of a third.
      {{0, 0, 66, {65}, {3, 3}}, {1, 0, 65, {10, 63, 64}, {1, 1}}, {2, 0, 21, {}, {5, 5}}},
      // The end of the first, a decode, and still nothing of the third.
      {{0, 66, 70, {69}, {3, 2}}, {1, 65, 66, {65}, {1, 1}}, {2, 21, 80, {}, {5, 4}}},
      // No token's logits are wanted.
      {{2, 80, 90, {}, {4, 4}}},
      {{0, 70, 75, {71, 74}, {2, 2}}, {2, 90, 100, {97}, {4, 4}}},
  };
  for (const std::vector<Part>& parts : steps)
    ExpectTheBitsAlone(*model, parts, Step(*model, kv, parts));
}

}  // namespace diffserve::testing
