// SPDX-License-Identifier: Apache-2.0
// Loads a model directory as `serve` does, answers a prompt if it loads, and checks the outcome.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "models/model.h"
#include "tests/testing/models/damaged_checkpoint.h"

namespace diffserve {

struct LoadOutcome {
  bool loaded = false;
  std::string line;  // the error message
};

LoadOutcome LoadAndAnswer(const std::string& dir, ThreadPool& pool);

// The fault of the outcome of a damage, or "".
std::string ProblemOf(const LoadOutcome& outcome, const Damage& damage, const std::string& dir);

struct CheckpointToDamage {
  std::string family;  // the prefix of its case's name
  std::filesystem::path dir;
  bool two_shards = false;  // split its one file
};

// For each family, the smallest golden case with one file and the smallest with shards.
std::vector<CheckpointToDamage> CheckpointsToDamage();

}  // namespace diffserve
