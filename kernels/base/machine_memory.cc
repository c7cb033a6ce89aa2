#include "kernels/base/machine_memory.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <limits>

namespace diffserve {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

std::string FileText(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The file's number; kNoLimit for "max" or a file that is not there.
int64_t NumberIn(const std::string& path) {
  const std::string text = FileText(path);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? value : kNoLimit;
}

// The value of `key` in lines of "key value"; 0 if it is not there.
int64_t Field(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string name;
  int64_t value = 0;
  std::string rest;
  while (file >> name >> value) {
    if (name == key) return value;
    std::getline(file, rest);
  }
  return 0;
}

// What one group leaves; file pages that can be dropped do not count as used.
int64_t FreeOfGroup(const std::string& folder, const char* limit_file, const char* usage_file,
                    const char* inactive_key) {
  const int64_t limit = NumberIn(folder + "/" + limit_file);
  const int64_t usage = NumberIn(folder + "/" + usage_file);
  if (limit == kNoLimit || usage == kNoLimit) return kNoLimit;
  return std::max<int64_t>(
      0, limit - std::max<int64_t>(0, usage - Field(folder + "/memory.stat", inactive_key)));
}

}  // namespace

int64_t CgroupFreeBytes(std::string_view cgroup_lines, const std::string& sys_root) {
  int64_t least = kNoLimit;
  while (!cgroup_lines.empty()) {
    const size_t end = cgroup_lines.find('\n');
    const std::string_view line = cgroup_lines.substr(0, end);
    cgroup_lines.remove_prefix(end == std::string_view::npos ? cgroup_lines.size() : end + 1);
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const bool is_v2 = controllers.empty();
    if (!is_v2 && controllers.find("memory") == std::string_view::npos) continue;
    // The group and its ancestors; in a container the group's own path may not be there, and the
    // root is the group.
    for (std::string path(line.substr(second + 1));; path.resize(path.rfind('/'))) {
      if (path == "/") path.clear();
      least = std::min(
          least, is_v2
                     ? FreeOfGroup(sys_root + path, "memory.max", "memory.current", "inactive_file")
                     : FreeOfGroup(sys_root + "/memory" + path, "memory.limit_in_bytes",
                                   "memory.usage_in_bytes", "total_inactive_file"));
      if (path.rfind('/') == std::string::npos) break;
    }
  }
  return least;
}

int64_t MachineMemoryBytes() {
  return std::min(int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE),
                  NumberIn("/sys/fs/cgroup/memory.max"));
}

int64_t FreeMemoryBytes() {
  const int64_t available = Field("/proc/meminfo", "MemAvailable:") * 1024;
  return std::min(available > 0 ? available : kNoLimit,
                  CgroupFreeBytes(FileText("/proc/self/cgroup"), "/sys/fs/cgroup"));
}

}  // namespace diffserve
