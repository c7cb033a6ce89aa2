// SPDX-License-Identifier: Apache-2.0
// The CPU quota of this process's control group (v2's cpu.max, v1's cpu.cfs_quota_us), its
// ancestors included.
#pragma once

#include <string>
#include <string_view>

namespace diffserve {

// CPUs' worth of time per second, or 0 if no group sets a limit. `cgroup_lines` is the text of
// /proc/self/cgroup and `sys_root` the mount point of the group file systems (/sys/fs/cgroup).
double CgroupCpuQuota(std::string_view cgroup_lines, const std::string& sys_root);

}  // namespace diffserve
