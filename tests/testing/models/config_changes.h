// SPDX-License-Identifier: Apache-2.0
// Changes single keys of a family's config.json and reads the result.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "models/load_config.h"
#include "models/model_config.h"
#include "tests/testing/models/checkpoint_writer.h"

namespace diffserve {

using Changes = std::map<std::string, std::string>;

// The config.json of TinyConfigJson with changes; errors are without the directory's name.
inline Result<ModelConfig> LoadWith(const Changes& changes, const std::string& family = "diffllama",
                                    const std::string& generation = "") {
  TemporaryDirectory directory;
  TinyCheckpointOptions options;
  options.family = family;
  options.config_changes = changes;
  WriteFile(directory.path() / "config.json", TinyConfigJson(options));
  if (!generation.empty()) WriteFile(directory.path() / "generation_config.json", generation);
  Result<ModelConfig> config = LoadModelConfig(directory.path().string());
  if (config.ok()) return config;
  std::string message = config.status().message();
  const std::string prefix = directory.path().string() + "/";
  EXPECT_TRUE(message.starts_with(prefix)) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return InvalidArgument(message.substr(std::min(message.size(), prefix.size())));
}

struct Refusal {
  Changes changes;
  std::string line;  // after the file's name
};

inline void ExpectRefused(const Refusal& refusal, const std::string& family) {
  const Result<ModelConfig> config = LoadWith(refusal.changes, family);
  ASSERT_FALSE(config.ok()) << "accepted, expected: " << refusal.line;
  EXPECT_EQ(config.status().message(), "config.json: " + refusal.line);
}

}  // namespace diffserve
