// SPDX-License-Identifier: Apache-2.0
#include "kernels/process/machine_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <limits>

#include "kernels/process/control_groups.h"

namespace diffserve {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

std::string FileText(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The number in the file; kNoLimit for "max" or a missing file.
int64_t NumberIn(const std::string& path) {
  const std::string text = FileText(path);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? value : kNoLimit;
}

// The value of `key` in lines of "key value"; 0 if the key is missing.
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

// The memory that one group leaves. File pages that can be dropped do not count as used.
int64_t FreeOfGroup(const std::string& folder, const char* limit_file, const char* usage_file,
                    const char* inactive_key) {
  const int64_t limit = NumberIn(folder + "/" + limit_file);
  const int64_t usage = NumberIn(folder + "/" + usage_file);
  if (limit == kNoLimit || usage == kNoLimit) return kNoLimit;
  return std::max<int64_t>(
      0, limit - std::max<int64_t>(0, usage - Field(folder + "/memory.stat", inactive_key)));
}

int64_t FreeAddressSpace() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kNoLimit;
  const int64_t used = NumberIn("/proc/self/statm") * sysconf(_SC_PAGESIZE);
  return std::max<int64_t>(0, static_cast<int64_t>(limit.rlim_cur) - used);
}

}  // namespace

int64_t CgroupFreeBytes(std::string_view cgroup_lines, const std::string& sys_root) {
  int64_t least = kNoLimit;
  for (const auto& [folder, is_v2] : ControlGroups(cgroup_lines, sys_root, "memory")) {
    least = std::min(least,
                     is_v2 ? FreeOfGroup(folder, "memory.max", "memory.current", "inactive_file")
                           : FreeOfGroup(folder, "memory.limit_in_bytes", "memory.usage_in_bytes",
                                         "total_inactive_file"));
  }
  return least;
}

int64_t MachineMemoryBytes() {
  return std::min(int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE),
                  NumberIn("/sys/fs/cgroup/memory.max"));
}

FreeMemory MinFreeMemory() {
  const int64_t available = Field("/proc/meminfo", "MemAvailable:") * 1024;
  const FreeMemory all[] = {
      {available > 0 ? available : kNoLimit, "the machine's memory"},
      {CgroupFreeBytes(FileText("/proc/self/cgroup"), "/sys/fs/cgroup"), "the control group"},
      {FreeAddressSpace(), "ulimit -v"}};
  return *std::ranges::min_element(all, {}, &FreeMemory::bytes);
}

}  // namespace diffserve
