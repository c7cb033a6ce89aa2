// SPDX-License-Identifier: Apache-2.0
// Runs code in a process of its own with limits of memory and time, so that whatever a loader does
// is seen from outside.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace diffserve {

struct Limits {
  size_t extra_bytes = size_t{256} << 20;  // of address space, above what this process has
  int cpu_s = 20;
  int wall_s = 120;
};

struct ProcessOutcome {
  int exit_code = 0;
  int signal = 0;      // that ended it; SIGKILL if the wall time was up
  double ms = 0;       // user and system time
  double mib = 0;      // the most that was resident, above what this process has at the start
  std::string output;  // what it wrote, at most 64 KiB
};

inline size_t StatmBytes(int field) {
  std::ifstream statm("/proc/self/statm");
  size_t pages = 0;
  for (int i = 0; i <= field; ++i) statm >> pages;
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// The most that was ever resident of this process, and its user and system time.
inline double PeakResidentMib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return static_cast<double>(std::atoll(line.c_str() + 6)) / 1024;
  }
  return 0;
}
inline double MsOf(const rusage& usage) {
  const auto us = [](const timeval& time) {
    return int64_t{time.tv_sec} * 1'000'000 + time.tv_usec;
  };
  return static_cast<double>(us(usage.ru_utime) + us(usage.ru_stime)) / 1e3;
}
inline double CpuMs() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return MsOf(usage);
}

// The child runs `body` with the end of a pipe that it may write to, and exits with its result.
inline ProcessOutcome RunLimited(const Limits& limits, const std::function<int(int out)>& body) {
  ProcessOutcome outcome;
  const size_t resident = StatmBytes(1);
  const size_t space = StatmBytes(0);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return outcome.signal = SIGABRT, outcome;
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    const auto limit = [](int what, size_t value) {
      const rlimit both{value, value};
      setrlimit(static_cast<__rlimit_resource>(what), &both);
    };
    limit(RLIMIT_AS, space + limits.extra_bytes);
    limit(RLIMIT_CPU, static_cast<size_t>(limits.cpu_s));
    limit(RLIMIT_CORE, 0);
    _exit(body(ends[1]));
  }
  close(ends[1]);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(limits.wall_s);
  char bytes[4096];
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
                          end - std::chrono::steady_clock::now())
                          .count();
    pollfd waiting{ends[0], POLLIN, 0};
    const int ready = left > 0 ? poll(&waiting, 1, static_cast<int>(left)) : 0;
    if (ready == 0) kill(child, SIGKILL);
    const ssize_t got = ready > 0 ? read(ends[0], bytes, sizeof(bytes)) : 0;
    if (got <= 0) break;
    if (outcome.output.size() < (64 << 10)) outcome.output.append(bytes, static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  rusage usage{};
  wait4(child, &status, 0, &usage);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  outcome.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  outcome.ms = MsOf(usage);
  const double most = static_cast<double>(usage.ru_maxrss) * 1024;
  outcome.mib = std::max(0.0, most - static_cast<double>(resident)) / (1 << 20);
  return outcome;
}

}  // namespace diffserve
