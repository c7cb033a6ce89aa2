// SPDX-License-Identifier: Apache-2.0
// Sampling defaults and a byte order mark, in a directory with and without generation_config.json.
#include <gtest/gtest.h>

#include "models/load_config.h"
#include "models/model_config.h"
#include "tests/testing/models/checkpoint_writer.h"

namespace diffserve {
namespace {

// As transformers: values beside a generation_config.json do not count.
TEST(GenerationConfigTest, SamplingDefaultsComeFromConfigWithoutGenerationConfig) {
  const TemporaryDirectory directory;
  directory.Write(
      "config.json",
      TinyConfigJson(
          {.config_changes = {{"temperature", "0.3"}, {"top_k", "7"}, {"max_new_tokens", "9"}}}));
  const Result<ModelConfig> config = LoadModelConfig(directory.path());
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->default_temperature, 0.3f);
  EXPECT_EQ(config->default_top_k, 7);
  EXPECT_EQ(config->default_max_tokens, 9);
  EXPECT_FALSE(config->default_top_p.has_value());
  directory.Write("generation_config.json", "{\"top_p\": 0.5}");
  const Result<ModelConfig> beside = LoadModelConfig(directory.path());
  ASSERT_TRUE(beside.ok()) << beside.status().message();
  EXPECT_FALSE(beside->default_temperature || beside->default_top_k || beside->default_max_tokens);
  EXPECT_EQ(beside->default_top_p, 0.5f);
}

TEST(GenerationConfigTest, ByteOrderMarkIsSkipped) {
  const TemporaryDirectory directory;
  directory.Write("config.json", "\xEF\xBB\xBF" + TinyConfigJson({}));
  directory.Write("generation_config.json", "\xEF\xBB\xBF{\"top_k\": 3}");
  const Result<ModelConfig> config = LoadModelConfig(directory.path());
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->default_top_k, 3);
}

}  // namespace
}  // namespace diffserve
