// SPDX-License-Identifier: Apache-2.0
// Damages to the JSON files of a model directory: the index of shards and the configuration.
#pragma once

#include <string>
#include <vector>

#include "tests/testing/models/damaged_checkpoint.h"

namespace diffserve {

// REQUIRES: the copy has an index of at least two shards.
std::vector<Damage> LyingIndexes(const DamagedCopy& copy);

// JSON that is invalid in every file.
std::vector<Damage> BrokenJson(const std::string& file);

// Invalid values for the good text's keys: each key whose value is a number, a string or null gets
// each of them. Some keys may be unused.
std::vector<Damage> WrongValues(const DamagedCopy& copy, const std::string& file);

}  // namespace diffserve
