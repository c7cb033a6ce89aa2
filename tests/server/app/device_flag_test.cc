// SPDX-License-Identifier: Apache-2.0
// --device: the CPU, a GPU, or a GPU by its number.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "kernels/base/cuda/device.h"
#include "server/app/options.h"

namespace diffserve {
namespace {

using ::testing::HasSubstr;

Result<Options> ParsedDevice(const std::string& value) {
  return ParseOptions({"serve", "DIR", "--device", value});
}

TEST(DeviceFlagTest, NumberIsStored) {
  for (const auto& [value, kind] :
       {std::pair("auto:12", DeviceChoice::Kind::kAuto), {"cuda:12", DeviceChoice::Kind::kGpu}}) {
    const Result<Options> options = ParsedDevice(value);
    ASSERT_EQ(options.ok(), cuda::IsCompiledIn());
    if (!options.ok()) continue;
    EXPECT_EQ(options->session.device.kind, kind);
    EXPECT_EQ(options->session.device.gpu, 12);
  }
  EXPECT_EQ(ParsedDevice("auto")->session.device.gpu, std::nullopt);
  EXPECT_EQ(ParsedDevice("cpu")->session.device.kind, DeviceChoice::Kind::kCpu);
}

TEST(DeviceFlagTest, OtherValuesAreRefused) {
  for (const char* const wrong :
       {"cpu:1", "auto:", "auto:-1", "auto:1x", "auto:1234", "gpu", ":1"}) {
    const Result<Options> options = ParsedDevice(wrong);
    ASSERT_FALSE(options.ok()) << wrong;
    EXPECT_THAT(options.status().message(), HasSubstr("allowed: auto, cpu")) << wrong;
  }
}

TEST(DeviceFlagTest, BuildWithoutTheBackendSaysSo) {
  if (cuda::IsCompiledIn()) GTEST_SKIP() << "this build has the CUDA backend";
  for (const std::string value : {"cuda", "cuda:1"}) {
    EXPECT_EQ(ParsedDevice(value).status().message(),
              "--device " + value + ": this build has no CUDA backend; allowed: auto, cpu");
  }
}

}  // namespace
}  // namespace diffserve
