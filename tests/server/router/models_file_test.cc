// SPDX-License-Identifier: Apache-2.0
#include "server/router/models_file.h"

#include <gtest/gtest.h>

namespace diffserve {
namespace {

using Flags = std::vector<std::string>;

TEST(ModelsFileTest, ReadsModelsInTheFilesOrder) {
  const auto models = RoutedModels::Parse(R"({
    "small": {"model": "/models/small", "pinned": true},
    "big": {"model": "hf:org/big", "aliases": ["gpt-4", "large"]}})");
  ASSERT_TRUE(models.ok()) << models.status().message();
  ASSERT_EQ(models->all().size(), 2u);
  EXPECT_EQ(models->all()[0].name, "small");
  EXPECT_TRUE(models->all()[0].pinned);
  EXPECT_EQ(models->all()[1].model, "hf:org/big");
  EXPECT_FALSE(models->all()[1].pinned);
}

TEST(ModelsFileTest, FindsNamesAndAliasesAndTheFirstModelByDefault) {
  const auto models = RoutedModels::Parse(
      R"({"z": {"model": "z"}, "a": {"model": "a", "aliases": ["b"]}})");
  ASSERT_TRUE(models.ok());
  EXPECT_EQ(models->Find("a"), 1u);
  EXPECT_EQ(models->Find("b"), 1u);
  EXPECT_EQ(models->Find(""), 0u);
  EXPECT_EQ(models->Find("c"), std::nullopt);
}

TEST(ModelsFileTest, WritesFlagsAsOnACommandLine) {
  const auto models = RoutedModels::Parse(R"({"m": {"model": "d", "flags": {
    "threads": 2, "max_model_len": 512, "kv-cache-memory": "64MiB", "batch-invariant": true,
    "enable-prefix-caching": false, "kv-cache-dtype-skip-layers": [0, -1]}}})");
  ASSERT_TRUE(models.ok()) << models.status().message();
  EXPECT_EQ(
      models->all()[0].flags,
      (Flags{"--threads=2", "--max-model-len=512", "--kv-cache-memory=64MiB", "--batch-invariant",
             "--no-enable-prefix-caching", "--kv-cache-dtype-skip-layers=0,-1"}));
}

TEST(ModelsFileTest, RefusalsNameWhatWasFoundAndWhatIsAllowed) {
  const std::pair<const char*, const char*> cases[] = {
      {"[]", "allowed: one JSON object"},
      {"{}", "allowed: one JSON object"},
      {R"({"m": {"model": "d"})", "allowed: one JSON object"},
      {R"({"m": 1})", "m is a JSON number; allowed: an object with model"},
      {R"({"m": {}})", "m.model is missing"},
      {R"({"m": {"model": 1}})",
       "m.model is a JSON number; allowed: the path of a model directory"},
      {R"({"m m": {"model": "d"}})", "printable ASCII"},
      {R"({"m": {"model": "d", "adapters": []}})", "m.adapters is set; allowed: only in a build"},
      {R"({"m": {"model": "d", "ttl": 1}})", "m.ttl is not known; allowed: model, flags"},
      {R"({"m": {"model": "d", "pinned": 1}})", "m.pinned is a JSON number; allowed: true, false"},
      {R"({"m": {"model": "d", "flags": {"port": 80}}})",
       "has --port; allowed: on the command line only"},
      {R"({"m": {"model": "d", "flags": {"grpc_port": 80}}})",
       "has --grpc-port; allowed: on the command line only"},
      {R"({"m": {"model": "d", "flags": {"threads": null}}})", "m.flags.threads is a JSON null"},
      {R"({"m": {"model": "d", "flags": {"threads": [1, "2"]}}})", "is a JSON array"},
      {R"({"m": {"model": "d", "aliases": ["m"]}})", "has the name \"m\" of another"},
      {R"({"m": {"model": "d"}, "n": {"model": "d", "aliases": ["m"]}})",
       "has the name \"m\" of another"},
  };
  for (const auto& [text, message] : cases) {
    const auto models = RoutedModels::Parse(text);
    ASSERT_FALSE(models.ok()) << text;
    EXPECT_NE(models.status().message().find(message), std::string::npos)
        << text << " gives " << models.status().message();
  }
}

}  // namespace
}  // namespace diffserve
