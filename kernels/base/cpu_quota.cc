#include "kernels/base/cpu_quota.h"

#include <fstream>
#include <sstream>

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

// The smallest quota from root + path up to root. A container often sees its own group at the root,
// with a path that does not exist there; files that cannot be read set no limit.
double SmallestQuota(const std::string& root, std::string path,
                     double (*quota_of)(const std::string&)) {
  double smallest = 0;
  while (true) {
    const double quota = quota_of(root + path);
    if (quota > 0 && (smallest == 0 || quota < smallest)) smallest = quota;
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return smallest;
    path.resize(slash);
  }
}

bool HasCpuController(std::string_view controllers) {
  std::istringstream list{std::string(controllers)};
  std::string name;
  while (std::getline(list, name, ',')) {
    if (name == "cpu") return true;
  }
  return false;
}

}  // namespace

double CgroupCpuQuota(std::string_view cgroup_lines, const std::string& sys_root) {
  std::istringstream lines{std::string(cgroup_lines)};
  std::string line;
  double smallest = 0;
  while (std::getline(lines, line)) {
    // hierarchy-id:controllers:path, where v2 has id 0 and no controllers
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    double quota = 0;
    if (controllers.empty()) {
      quota = SmallestQuota(sys_root, path, QuotaV2);
    } else if (HasCpuController(controllers)) {
      quota = SmallestQuota(sys_root + "/" + controllers, path, QuotaV1);
      if (quota == 0) quota = SmallestQuota(sys_root + "/cpu", path, QuotaV1);
    }
    if (quota > 0 && (smallest == 0 || quota < smallest)) smallest = quota;
  }
  return smallest;
}

}  // namespace diffserve
