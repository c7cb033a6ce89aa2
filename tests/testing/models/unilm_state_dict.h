// SPDX-License-Identifier: Apache-2.0
// State dicts as the code of microsoft/unilm writes them, and under other names.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "models/dummy_weights.h"
#include "tests/testing/models/checkpoint_writer.h"

namespace diffserve {

// A model of microsoft/unilm with the names of a converted checkpoint.
struct UnilmModel {
  std::string config;
  std::vector<FileTensor> tensors;
};

UnilmModel Unilm(bool second_version);

// The tensors with parts of their names replaced, in the order of the pairs.
using Replacements = std::vector<std::pair<std::string, std::string>>;
std::vector<FileTensor> Renamed(std::vector<FileTensor> tensors, const Replacements& replacements);

// Merges neighbours whose names end in `parts` into one tensor.
std::vector<FileTensor> Fused(const std::vector<FileTensor>& tensors,
                              const std::vector<std::string>& parts, const std::string& name);

}  // namespace diffserve
