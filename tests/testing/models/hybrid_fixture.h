// SPDX-License-Identifier: Apache-2.0
// Steps of a model with different kinds of layers, by any of its decoders: parts of sequences, only
// some of whose tokens' logits are needed, over two pools of pages and slots of states. For any
// steps, a token's logits have the same bits as in a run of its sequence by itself in one step.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "models/model.h"
#include "tests/testing/models/golden_case.h"

namespace diffserve::testing {

constexpr int kSequences = 4;
constexpr int kPages = 2;  // of a sequence
constexpr int kLength = 100;
constexpr int kGeneratedFrom[kSequences] = {70, 60, kLength, 50};

// Tokens [begin, end) of a sequence in a step.
struct Part {
  int sequence = 0;
  int begin = 0, end = 0;
  std::vector<int> wanted;  // whose logits are wanted
  StateSlotUse state;
};

class HybridTest : public ::testing::Test {
 protected:
  HybridTest();
  // That of the pages.
  virtual KvFormat FormatOf(const Model& model) const = 0;

  std::unique_ptr<Model> Load();
  KvCache Cache(const Model& model) const;
  int32_t TokenOf(int sequence, int position) const;
  Batch BatchOf(const std::vector<Part>& parts) const;
  // The logits of the parts' wanted tokens.
  std::vector<float> Step(Model& model, KvCache& kv, const std::vector<Part>& parts) const;
  // Those of every token of the sequence, alone and at once.
  std::vector<float> Alone(Model& model, int sequence) const;
  // `found` is of the wanted tokens of the parts.
  void ExpectTheBitsAlone(Model& model, const std::vector<Part>& parts,
                          const std::vector<float>& found);
  void ExpectTheBitsAloneOfSomeTokens();

  const int vocab_ = 100;
  ModelOptions options_;
  std::vector<int32_t> pages_, window_pages_;
  std::vector<float> alone_[kSequences];
  ThreadPool pool_{{.num_threads = 1, .pin = false, .spin_us = 0}};
};

}  // namespace diffserve::testing
