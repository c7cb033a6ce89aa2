// SPDX-License-Identifier: Apache-2.0
// Paths of this process's control groups, for versions 1 and 2.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace diffserve {

struct ControlGroup {
  std::string folder;
  bool is_v2 = true;
};

// The groups in which `controller` ("cpu", "memory") may set a limit, and all their ancestors.
// `cgroup_lines` is the text of /proc/self/cgroup, `sys_root` the mount point of the group file
// systems (/sys/fs/cgroup). A container often sees its own group at the root, under a path that
// does not exist there. So a folder need not exist, and a missing file sets no limit.
std::vector<ControlGroup> ControlGroups(std::string_view cgroup_lines, const std::string& sys_root,
                                        std::string_view controller);

}  // namespace diffserve
