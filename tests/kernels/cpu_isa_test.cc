// SPDX-License-Identifier: Apache-2.0
// The choice of a level, the CPU quota of control groups, and the probes.
#include "kernels/base/cpu_isa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "kernels/base/kernels_for.h"
#include "kernels/base/machine_probe.h"
#include "kernels/ops/weight_packer.h"
#include "kernels/process/cpu_quota.h"
#include "tests/testing/kernels/kernel_levels.h"

namespace diffserve {
namespace {

using ::testing::HasSubstr;

TEST(CpuIsaTest, AutoIsTheBestSupportedLevelAndEverySupportedNameIsAccepted) {
  const std::vector<CpuIsa> levels = SupportedCpuIsas();
  EXPECT_EQ(levels.front(), kBaseCpuIsa);
  EXPECT_EQ(*ChooseCpuIsa("auto"), levels.back());
  for (CpuIsa level : levels) EXPECT_EQ(*ChooseCpuIsa(NameOf(level)), level);
}

TEST(CpuIsaTest, UnknownOrUnsupportedNameIsRefusedWithTheAllowedOnes) {
  for (const char* name : {"", "sse2", "AVX2", "paired16"}) {
    const Result<CpuIsa> choice = ChooseCpuIsa(name);
    ASSERT_FALSE(choice.ok()) << name;
    EXPECT_EQ(choice.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(choice.status().param(), "cpu-isa");
    EXPECT_THAT(choice.status().message(), HasSubstr("auto, " + std::string(NameOf(kBaseCpuIsa))));
    EXPECT_THAT(choice.status().message(), HasSubstr(std::string("\"").append(name).append("\"")));
  }
}

bool IsAvx512(CpuIsa isa) { return NameOf(isa).starts_with("avx512"); }

TEST(CpuIsaTest, WiderLevelsUseWiderPanels) {
  for (CpuIsa isa : kCpuIsas) EXPECT_EQ(cpu::PanelColumns(isa), IsAvx512(isa) ? 32 : 16);
  for (CpuIsa isa : testing::LevelsOfEachWidth())
    EXPECT_EQ(cpu::PanelColumns(isa), isa == CpuIsa::kPaired16 ? 32 : 16);
}

// A made-up /sys/fs/cgroup.
class CgroupCpuQuotaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = ::testing::TempDir() + "/diffserve_cgroup_" + test->name();
    std::filesystem::remove_all(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  std::string root_;
};

TEST_F(CgroupCpuQuotaTest, NoFilesOrMaxMeanNoLimit) {
  EXPECT_EQ(CgroupCpuQuota("", root_), 0);
  EXPECT_EQ(CgroupCpuQuota("0::/a\n", root_), 0);
  Write("/a/cpu.max", "max 100000\n");
  EXPECT_EQ(CgroupCpuQuota("0::/a\n", root_), 0);
}

TEST_F(CgroupCpuQuotaTest, TightestAncestorOfVersion2Counts) {
  Write("/a/b/cpu.max", "400000 100000\n");
  Write("/a/cpu.max", "150000 100000\n");
  Write("/cpu.max", "max 100000\n");
  EXPECT_EQ(CgroupCpuQuota("0::/a/b\n", root_), 1.5);
}

TEST_F(CgroupCpuQuotaTest, ContainerReadsItsOwnGroupAtTheRoot) {
  Write("/cpu.max", "250000 100000\n");
  EXPECT_EQ(CgroupCpuQuota("0::/docker/0123abcd\n", root_), 2.5);
  EXPECT_EQ(CgroupCpuQuota("0::/\n", root_), 2.5);
}

TEST_F(CgroupCpuQuotaTest, Version1IsReadFromItsCpuHierarchy) {
  Write("/cpu,cpuacct/x/cpu.cfs_quota_us", "300000\n");
  Write("/cpu,cpuacct/x/cpu.cfs_period_us", "100000\n");
  Write("/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  Write("/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CgroupCpuQuota("4:memory:/x\n3:cpu,cpuacct:/x\n0::/\n", root_), 3);
  EXPECT_EQ(CgroupCpuQuota("2:cpuset:/x\n", root_), 0) << "cpuset is not the cpu controller";
}

TEST(MachineProbeTest, ReadsEachFloatOnce) {
  for (CpuIsa isa : SupportedCpuIsas()) {
    Buffer ones(4096 * sizeof(float));
    std::fill_n(ones.as<float>(), 4096, 1.0f);
    EXPECT_EQ(KernelsFor<ProbeKernels>(isa).read_all(ones.as<float>(), 4096), 4096) << NameOf(isa);
  }
}

// Each iteration multiplies and adds twelve registers of float32, or of pairs or quads.
TEST(MachineProbeTest, CountsAMultiplyAndAnAddPerElement) {
  for (CpuIsa isa : SupportedCpuIsas()) {
    const auto flops = KernelsFor<ProbeKernels>(isa).flops;
    const double lanes = IsAvx512(isa) ? 16 : 8;
    EXPECT_EQ(flops(Arithmetic::kFma, 10), 10 * 12 * lanes * 2) << NameOf(isa);
    EXPECT_EQ(flops(Arithmetic::kInt8Dot, 10), 10 * 12 * lanes * 8) << NameOf(isa);
    if (RoundsToBFloat16(isa)) {
      EXPECT_EQ(flops(Arithmetic::kBFloat16Dot, 10), 10 * 12 * lanes * 4);
    }
  }
}

// Bytes per second of the best of four passes over 64 MiB, measured here.
double BytesReadPerSecond() {
  constexpr int64_t kFloats = int64_t{16} << 20;
  Buffer zeros(static_cast<size_t>(kFloats) * sizeof(float));
  std::fill_n(zeros.as<float>(), kFloats, 0.0f);
  double best = 0;
  for (int pass = 0; pass < 4; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(KernelsFor<ProbeKernels>(testing::EightLanes()).read_all(zeros.as<float>(), kFloats),
              0);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::max(best, static_cast<double>(kFloats) * sizeof(float) / took.count());
  }
  return best;
}

// The best pass is no slower than all of them together, and no core has more than three ports for
// vectors or reads ten times as fast as the test does.
TEST(MachineProbeTest, RatesAreWorkDividedByTime) {
  ThreadPool pool({.num_threads = 1});
  const auto seconds_of = [](const auto& measure) {
    const auto begin = std::chrono::steady_clock::now();
    measure();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  ReadProbe probe;
  double rate = 0;
  double seconds = seconds_of([&] { rate = probe.MeasureBytesPerSecond(pool); });
  EXPECT_GE(rate, ReadProbe::kBytesRead / seconds);
  EXPECT_LT(rate, 10 * BytesReadPerSecond());
  for (CpuIsa isa : SupportedCpuIsas()) {
    for (Arithmetic arithmetic :
         {Arithmetic::kFma, Arithmetic::kBFloat16Dot, Arithmetic::kInt8Dot}) {
      double done = 0;
      seconds = seconds_of([&] { rate = MeasureFlopsPerSecond(arithmetic, isa, pool, &done); });
      const double per_register = KernelsFor<ProbeKernels>(isa).flops(arithmetic, 1) / 12;
      EXPECT_GE(rate, done / seconds) << NameOf(isa);
      EXPECT_LT(rate, per_register * 3 * 8e9) << NameOf(isa);
    }
  }
}

}  // namespace
}  // namespace diffserve
