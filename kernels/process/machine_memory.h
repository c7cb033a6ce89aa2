// SPDX-License-Identifier: Apache-2.0
// Memory of the machine, and how much of it this process may still take.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace diffserve {

// The machine's memory, or the limit of the control group in /sys/fs/cgroup if that is smaller.
int64_t MachineMemoryBytes();

// What this process may still take: the minimum of the system's MemAvailable, what its control
// groups leave, and its own limit of address space (ulimit -v).
struct FreeMemory {
  int64_t bytes = 0;
  const char* limit = "";  // the one that is the minimum, in words
};
FreeMemory MinFreeMemory();
inline int64_t FreeMemoryBytes() { return MinFreeMemory().bytes; }

// What the control groups of `cgroup_lines` (the text of /proc/self/cgroup) leave below `sys_root`
// (/sys/fs/cgroup). INT64_MAX if none sets a limit.
int64_t CgroupFreeBytes(std::string_view cgroup_lines, const std::string& sys_root);

}  // namespace diffserve
