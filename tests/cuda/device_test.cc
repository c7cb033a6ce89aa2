// SPDX-License-Identifier: Apache-2.0
// The device query in each of the three cases: no backend in the build, no device, a device.
#include "kernels/base/cuda/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "kernels/base/cuda/architectures.h"

namespace diffserve {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

TEST(DeviceTest, MissingSupportIsReportedInOneLineWithoutAbort) {
  const Result<cuda::DeviceInfo> device = cuda::OpenDevice(0);
  if (device.ok()) GTEST_SKIP() << "there is a device";
  const std::string& message = device.status().message();
  EXPECT_THAT(message, Not(HasSubstr("\n")));
  if (cuda::IsCompiledIn()) {
    EXPECT_THAT(device.status().code(), AnyOf(StatusCode::kNotFound, StatusCode::kDeviceLost));
    EXPECT_THAT(message, AnyOf(HasSubstr("driver"), HasSubstr("sm_80")));
  } else {
    EXPECT_EQ(device.status().code(), StatusCode::kUnimplemented);
    EXPECT_EQ(message, "this build has no CUDA backend");
  }
}

TEST(DeviceTest, OpenedDeviceHasCodeAndMemory) {
  const Result<cuda::DeviceInfo> device = cuda::OpenDevice(0);
  if (!device.ok()) GTEST_SKIP() << device.status().message();
  EXPECT_THAT(device->compute_capability, Ge(cuda::kComputeCapabilityMin));
  EXPECT_THAT(cuda::Describe(*device), HasSubstr(device->name + " (sm_"));
  const Result<cuda::DeviceMemory> memory = cuda::MemoryOfDevice();
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  EXPECT_THAT(memory->total_bytes, Ge(memory->free_bytes));
}

TEST(DeviceTest, MachineCodeRunsOnItsMajorVersionAndPtxElsewhereExceptOnHopper) {
  using cuda::HasMachineCode, cuda::HasPortableCode;
  for (int device : {80, 86, 89, 90}) EXPECT_TRUE(HasMachineCode("80 90a", device)) << device;
  for (int device : {100, 103, 120}) {
    EXPECT_FALSE(HasMachineCode("80 90a", device)) << device;
    EXPECT_TRUE(HasMachineCode("80 90a 100 120", device)) << device;
    EXPECT_TRUE(HasPortableCode("80 90a", device)) << device;
    EXPECT_FALSE(HasPortableCode("90a", device)) << device;
  }
  EXPECT_FALSE(HasMachineCode("86 90a", 80));
  EXPECT_FALSE(HasMachineCode("80", 90));
  for (int device : {80, 89}) EXPECT_FALSE(HasPortableCode("100", device)) << device;
  EXPECT_FALSE(HasPortableCode("80", 90)) << "its prefill and bulk copies are of sm_90a alone";
}

TEST(DeviceTest, MissingOrdinalIsNamed) {
  const Result<cuda::DeviceInfo> device = cuda::OpenDevice(0);
  if (!device.ok()) GTEST_SKIP() << device.status().message();
  EXPECT_EQ(cuda::OpenDevice(-1).status().code(), StatusCode::kDeviceLost);
  EXPECT_THAT(cuda::OpenDevice(1000).status().message(),
              AllOf(HasSubstr("cuda:1000 does not exist; CUDA shows "),
                    HasSubstr(": cuda:0 " + device->name)));
}

TEST(DeviceTest, ListedDevicesHaveTheirNumbersAndDifferentIds) {
  const Result<std::vector<cuda::DeviceInfo>> devices = cuda::ListDevices();
  if (!devices.ok()) GTEST_SKIP() << devices.status().message();
  std::set<std::string> ids;
  for (size_t i = 0; i < devices->size(); ++i) {
    EXPECT_EQ((*devices)[i].ordinal, static_cast<int>(i));
    EXPECT_THAT((*devices)[i].uuid, MatchesRegex("GPU(-[0-9a-f]+){5}"));
    EXPECT_EQ((*devices)[i].uuid.size(), 40u);
    ids.insert((*devices)[i].uuid);
  }
  EXPECT_EQ(ids.size(), devices->size());
}

}  // namespace
}  // namespace diffserve
