// What a machine is told about its devices, in each of the three cases: no backend in the build, no
// device, a device.
#include "kernels/base/cuda/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace diffserve {
namespace {

using ::testing::AnyOf;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(DeviceTest, WhatIsMissingIsSaidInOneLineAndNothingAborts) {
  const Result<std::vector<cuda::DeviceInfo>> devices = cuda::ListDevices();
  if (devices.ok()) GTEST_SKIP() << "there is a device";
  const std::string& message = devices.status().message();
  EXPECT_THAT(message, Not(HasSubstr("\n")));
  if (cuda::IsCompiledIn()) {
    EXPECT_EQ(devices.status().code(), StatusCode::kNotFound);
    EXPECT_THAT(message, AnyOf(HasSubstr("driver"), HasSubstr("sm_80")));
  } else {
    EXPECT_EQ(devices.status().code(), StatusCode::kUnimplemented);
    EXPECT_EQ(message, "this build has no CUDA backend");
  }
  EXPECT_EQ(cuda::OpenDevice(0).status().message(), message);
}

TEST(DeviceTest, EveryListedDeviceHasCodeAndCanBeOpened) {
  const Result<std::vector<cuda::DeviceInfo>> devices = cuda::ListDevices();
  if (!devices.ok()) GTEST_SKIP() << devices.status().message();
  ASSERT_THAT(devices->size(), Ge(1u));
  for (const cuda::DeviceInfo& device : *devices) {
    EXPECT_THAT(device.compute_capability, Ge(cuda::kComputeCapabilityMin));
    EXPECT_THAT(cuda::Describe(device), HasSubstr(device.name + " (sm_"));
    ASSERT_TRUE(cuda::OpenDevice(device.ordinal).ok());
    const Result<cuda::DeviceMemory> memory = cuda::MemoryOfDevice();
    ASSERT_TRUE(memory.ok()) << memory.status().message();
    EXPECT_THAT(memory->total_bytes, Ge(memory->free_bytes));
  }
}

TEST(DeviceTest, AnOrdinalThatDoesNotExistIsNamed) {
  const Result<std::vector<cuda::DeviceInfo>> devices = cuda::ListDevices();
  if (!devices.ok()) GTEST_SKIP() << devices.status().message();
  EXPECT_EQ(cuda::OpenDevice(-1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(cuda::OpenDevice(1000).status().message(),
              HasSubstr("CUDA device 1000 does not exist"));
}

}  // namespace
}  // namespace diffserve
