// SPDX-License-Identifier: Apache-2.0
#include "kernels/process/cpu_quota.h"

#include <fstream>

#include "kernels/process/control_groups.h"

namespace diffserve {
namespace {

// "max 100000" or "150000 100000"; 0 if absent or unlimited.
double QuotaV2(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  double quota_us = 0;
  double period_us = 0;
  if (!(file >> quota_us >> period_us) || quota_us <= 0 || period_us <= 0) return 0;
  return quota_us / period_us;
}

double QuotaV1(const std::string& folder) {
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us");
  std::ifstream period_file(folder + "/cpu.cfs_period_us");
  double quota_us = 0;
  double period_us = 0;
  if (!(quota_file >> quota_us) || !(period_file >> period_us) || quota_us <= 0 || period_us <= 0)
    return 0;
  return quota_us / period_us;
}

}  // namespace

double CgroupCpuQuota(std::string_view cgroup_lines, const std::string& sys_root) {
  double smallest = 0;
  for (const ControlGroup& group : ControlGroups(cgroup_lines, sys_root, "cpu")) {
    const double quota = group.is_v2 ? QuotaV2(group.folder) : QuotaV1(group.folder);
    if (quota > 0 && (smallest == 0 || quota < smallest)) smallest = quota;
  }
  return smallest;
}

}  // namespace diffserve
