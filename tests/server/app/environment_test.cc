// SPDX-License-Identifier: Apache-2.0
#include "server/app/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/kernels/temporary_directory.h"

namespace diffserve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Environment = std::vector<std::string>;

Result<Options> Serve(const Environment& environment, std::vector<std::string> flags = {}) {
  flags.insert(flags.begin(), {"serve", "DIR"});
  return ParseOptions(flags, environment);
}

TEST(EnvironmentTest, EachFlagHasAVariable) {
  const Environment environment = {"PATH=/bin", "DIFFSERVE_PORT=9000",
                                   "DIFFSERVE_KV_CACHE_MEMORY=1GiB", "DIFFSERVE_DTYPE=float32"};
  const Result<Options> options = Serve(environment);
  ASSERT_TRUE(options.ok()) << options.status().message();
  EXPECT_EQ(options->serve.port, 9000);
  EXPECT_EQ(options->session.kv_cache_memory.bytes, int64_t{1} << 30);
  EXPECT_EQ(options->session.dtype, DType::kFloat32);
  EXPECT_THAT(options->warnings, IsEmpty());
}

TEST(EnvironmentTest, FlagsWinOverVariablesAndVariablesOverTheFile) {
  const TemporaryDirectory directory;
  const std::string file = directory.path() / "options.json";
  WriteFile(file, R"({"port": 1, "grpc_port": 2, "health_port": 3})");
  const Environment environment = {"DIFFSERVE_PORT=10", "DIFFSERVE_GRPC_PORT=20",
                                   "DIFFSERVE_CONFIG=" + file};
  const Result<Options> options = Serve(environment, {"--port", "100"});
  ASSERT_TRUE(options.ok()) << options.status().message();
  EXPECT_EQ(options->serve.port, 100);
  EXPECT_EQ(options->serve.grpc_port, 20);
  EXPECT_EQ(options->serve.health_port, 3);
}

TEST(EnvironmentTest, SwitchesTakeTrueFalseOneAndZero) {
  for (const auto& [text, value] : {std::pair("true", true), std::pair("1", true),
                                    std::pair("false", false), std::pair("0", false)}) {
    EXPECT_EQ(Serve({std::string("DIFFSERVE_UI=") + text})->serve.ui, value) << text;
  }
  EXPECT_FALSE(Serve({"DIFFSERVE_UI=yes"}).ok());
  EXPECT_TRUE(Serve({"DIFFSERVE_UI=0"}, {"--ui"})->serve.ui);
}

TEST(EnvironmentTest, WhiteSpaceSeparatesTheTextsOfAList) {
  EXPECT_THAT(Serve({"DIFFSERVE_SERVED_MODEL_NAME= a  b\n"})->serve.served_model_names,
              ElementsAre("a", "b"));
}

TEST(EnvironmentTest, ErrorsNameTheVariable) {
  const Result<Options> options = Serve({"DIFFSERVE_PORT=70000"});
  ASSERT_FALSE(options.ok());
  EXPECT_EQ(options.status().message(), "DIFFSERVE_PORT: --port is \"70000\"; allowed: 0 to 65535");
  EXPECT_EQ(options.status().param(), "--port");
  EXPECT_THAT(Serve({"DIFFSERVE_CONFIG=/nonexistent"}).status().message(),
              HasSubstr("/nonexistent"));
}

TEST(EnvironmentTest, ModelsInheritVariablesExceptThoseOfTheirParent) {
  const Environment environment = {"DIFFSERVE_PORT=9000", "DIFFSERVE_MAX_MODEL_LEN=64",
                                   "DIFFSERVE_THREADS=1", "DIFFSERVE_MODELS=models.json"};
  const Result<Options> options = ParseOptions({"serve", "--threads", "2"}, environment);
  ASSERT_TRUE(options.ok()) << options.status().message();
  EXPECT_EQ(options->serve.port, 9000);
  EXPECT_EQ(options->models.file, "models.json");
  EXPECT_THAT(options->models.inherited_flags,
              ElementsAre("--max-model-len=64", "--threads=1", "--threads=2"));
}

// Those that Kubernetes sets in each container for a Service called diffserve.
TEST(EnvironmentTest, VariablesOfAKubernetesServiceAreSkipped) {
  const Result<Options> options = Serve(
      {"DIFFSERVE_PORT=tcp://10.0.0.1:80", "DIFFSERVE_PORT_80_TCP=tcp://10.0.0.1:80",
       "DIFFSERVE_PORT_80_TCP_ADDR=10.0.0.1", "DIFFSERVE_PORT_80_TCP_PORT=80",
       "DIFFSERVE_PORT_80_TCP_PROTO=tcp", "DIFFSERVE_SERVICE_HOST=10.0.0.1",
       "DIFFSERVE_SERVICE_PORT=80", "DIFFSERVE_SERVICE_PORT_HTTP=80",
       "DIFFSERVE_GRPC_PORT=udp://10.0.0.1:81"});
  ASSERT_TRUE(options.ok()) << options.status().message();
  EXPECT_EQ(options->serve.port, 8000);
  EXPECT_EQ(options->serve.grpc_port, 8001);
  EXPECT_THAT(options->warnings, IsEmpty());
}

TEST(EnvironmentTest, EmptyVariablesAndThoseOfOtherCommandsAreSkipped) {
  const Result<Options> options = Serve({"DIFFSERVE_PORT=", "DIFFSERVE_REPEAT=nonsense"});
  ASSERT_TRUE(options.ok()) << options.status().message();
  EXPECT_EQ(options->serve.port, 8000);
  EXPECT_THAT(options->warnings, IsEmpty());
}

TEST(EnvironmentTest, MistypedVariablesAreWarnedOf) {
  const Result<Options> options = Serve({"DIFFSERVE_PROT=1", "DIFFSERVE_BINARY=/bin/diffserve"});
  ASSERT_TRUE(options.ok()) << options.status().message();
  EXPECT_THAT(options->warnings,
              ElementsAre("DIFFSERVE_PROT sets no flag: did you mean DIFFSERVE_PORT?"));
}

}  // namespace
}  // namespace diffserve
