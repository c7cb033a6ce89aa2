// SPDX-License-Identifier: Apache-2.0
// Logits of a prompt of 20 tokens, for comparing two checkpoints or two ways to load one.
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <span>
#include <vector>

#include "models/model.h"

namespace diffserve {

// [20, vocab_size]; empty if the model cannot be loaded, which fails the test.
inline std::vector<float> ShortPromptLogits(const ModelOptions& options, ThreadPool& pool) {
  Result<std::unique_ptr<Model>> model = Model::Load(options, pool);
  EXPECT_TRUE(model.ok()) << model.status().message();
  if (!model.ok()) return {};
  const ModelConfig& config = (*model)->config();
  KvCache kv = (*model)
                   ->MakeUniformKvCache(KvFormat::Of(config.attention, 16, (*model)->dtype()), {2})
                   .value();
  const int32_t pages[] = {0, 1};
  Batch batch;
  for (int i = 0; i < 20; ++i) batch.tokens.push_back((7 * i + 3) % config.vocab_size);
  batch.sequences = {{0, 20, 0, pages}};
  batch.logit_rows.resize(20);
  std::iota(batch.logit_rows.begin(), batch.logit_rows.end(), 0);
  EXPECT_TRUE((*model)->Forward(batch, kv).ok());
  const std::span<const float> logits = (*model)->Logits(0, 20).value();
  return {logits.begin(), logits.end()};
}

}  // namespace diffserve
