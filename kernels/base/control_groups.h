// Where the files of this process's control groups lie, of version 1 and of version 2.
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
// systems (/sys/fs/cgroup). A container often sees its own group at the root, by a path that does
// not exist there: a folder need not exist, and files that are not there set no limit.
std::vector<ControlGroup> ControlGroups(std::string_view cgroup_lines, const std::string& sys_root,
                                        std::string_view controller);

}  // namespace diffserve
