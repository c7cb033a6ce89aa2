// SPDX-License-Identifier: Apache-2.0
#include "tests/faults/file_watch.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/types.h>

#include <atomic>
#include <cstdarg>
#include <utility>

namespace diffserve::testing {
namespace {

std::atomic<bool> is_watched{false};
std::function<void()> act_before_call;
int act_call = 0, num_calls = 0;

void CountCall() {
  if (!is_watched.load(std::memory_order_acquire) || ++num_calls != act_call) return;
  is_watched = false;
  act_before_call();
  is_watched = true;
}

template <typename Function>
Function* RealCall(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

void WatchFiles(int call, std::function<void()> act) {
  act_before_call = std::move(act);
  act_call = call;
  num_calls = 0;
  is_watched.store(true, std::memory_order_release);
}

int UnwatchFiles() {
  is_watched = false;
  return num_calls;
}

}  // namespace diffserve::testing

extern "C" {

int open(const char* path, int flags, ...) {
  static auto* const real = diffserve::testing::RealCall<int(const char*, int, ...)>("open");
  diffserve::testing::CountCall();
  std::va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return real(path, flags, mode);
}

ssize_t pread(int fd, void* bytes, size_t count, off_t offset) {
  static auto* const real = diffserve::testing::RealCall<decltype(pread)>("pread");
  diffserve::testing::CountCall();
  return real(fd, bytes, count, offset);
}

}  // extern "C"
