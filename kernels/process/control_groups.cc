// SPDX-License-Identifier: Apache-2.0
#include "kernels/process/control_groups.h"

#include <sstream>

namespace diffserve {
namespace {

void AddWithAncestors(const std::string& root, std::string path, bool is_v2,
                      std::vector<ControlGroup>& groups) {
  if (path == "/") path.clear();
  for (;; path.resize(path.rfind('/'))) {
    groups.push_back({root + path, is_v2});
    if (path.rfind('/') == std::string::npos) return;
  }
}

}  // namespace

std::vector<ControlGroup> ControlGroups(std::string_view cgroup_lines, const std::string& sys_root,
                                        std::string_view controller) {
  std::vector<ControlGroup> groups;
  const std::string name(controller);
  std::istringstream lines{std::string(cgroup_lines)};
  for (std::string line; std::getline(lines, line);) {
    // hierarchy-id:controllers:path, where version 2 has no controllers
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      AddWithAncestors(sys_root, path, true, groups);
    } else if (("," + controllers + ",").find("," + name + ",") != std::string::npos) {
      AddWithAncestors(sys_root + "/" + controllers, path, false, groups);
      if (controllers != name) AddWithAncestors(sys_root + "/" + name, path, false, groups);
    }
  }
  return groups;
}

}  // namespace diffserve
