// SPDX-License-Identifier: Apache-2.0
// The pages of an allocation that no kernel has written may only be read, and while accesses are
// watched no pages may. The fault of the first access says what it was, and allows the next ones.
#include "tests/kernels/shim/device_memory.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "tests/kernels/shim/fiber_context.h"
#include "tests/kernels/shim/host_calls.h"

namespace diffserve::shim {
namespace {

struct Allocation {
  size_t size_bytes = 0;    // whole pages
  bool is_written = false;  // by a kernel
};
using Allocations = std::map<char*, Allocation>;

Allocations allocations;  // of all devices
struct EarlyAccesses {
  bool is_watched = false;
  bool has_written = false;
  std::vector<const Allocation*> touched;
} early;
bool sees_writes = true;
struct sigaction other_faults;
const size_t page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));

void Protect(const Allocations::value_type& allocation, int protection) {
  if (mprotect(allocation.first, allocation.second.size_bytes, protection) != 0) std::abort();
}

Allocations::value_type* AllocationAt(const void* data) {
  auto* at = static_cast<char*>(const_cast<void*>(data));
  auto found = allocations.upper_bound(at);
  if (found == allocations.begin()) return nullptr;
  --found;
  return at < found->first + found->second.size_bytes ? &*found : nullptr;
}

void OnFault(int signal, siginfo_t* info, void* context) {
  Allocations::value_type* allocation = AllocationAt(info->si_addr);
  if (allocation == nullptr || (allocation->second.is_written && !early.is_watched)) {
    if ((other_faults.sa_flags & SA_SIGINFO) != 0)
      return other_faults.sa_sigaction(signal, info, context);
    sigaction(SIGSEGV, &other_faults, nullptr);
    return;  // and it happens again
  }
  constexpr long long kWrite = 2;  // of a page fault's error code
  const bool writes = (static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] &
                       kWrite) != 0;
  if (early.is_watched) {
    early.has_written |= writes;
    if (std::ranges::find(early.touched, &allocation->second) == early.touched.end())
      early.touched.push_back(&allocation->second);
  }
  allocation->second.is_written |= writes;
  Protect(*allocation, writes ? PROT_READ | PROT_WRITE : PROT_READ);
}

void HandleFaults() {
  static const bool is_handled = [] {
    struct sigaction action = {};
    action.sa_sigaction = OnFault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    return sigaction(SIGSEGV, &action, &other_faults) == 0;
  }();
  if (!is_handled) std::abort();
}

}  // namespace

// One byte more than asked for, so that there is always one beyond the end.
void* AllocatePages(size_t size_bytes) {
  HandleFaults();
  const size_t whole_pages = (size_bytes + page_bytes) / page_bytes * page_bytes;
  void* data = mmap(nullptr, whole_pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                    0);
  if (data == MAP_FAILED) return nullptr;
  madvise(data, whole_pages, MADV_HUGEPAGE);  // Protect is much faster, where that is allowed
  auto* bytes = static_cast<char*>(data);
  std::memset(bytes, 0xff, size_bytes);
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(bytes + size_bytes, whole_pages - size_bytes);
#endif
  Protect(*allocations.insert_or_assign(bytes, Allocation{whole_pages, false}).first, PROT_READ);
  return data;
}

void FreePages(void* data) {
  const auto found = allocations.find(static_cast<char*>(data));
  if (found == allocations.end()) std::abort();
  const size_t whole_pages = found->second.size_bytes;
  allocations.erase(found);
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(data, whole_pages);
#endif
  munmap(data, whole_pages);
}

void WriteByCopy(const void* to, const std::function<void()>& write) {
  const Allocations::value_type* allocation = AllocationAt(to);
  const bool is_protected = allocation != nullptr && !allocation->second.is_written;
  if (is_protected) Protect(*allocation, PROT_READ | PROT_WRITE);
  write();
  if (is_protected) Protect(*allocation, PROT_READ);
}

bool SeesWrites() { return sees_writes; }

void ForgetWrites() {
  constexpr int64_t kStride = 11;
  static int64_t later = 0;
  sees_writes = early_kernels < kAllWatched || ++later % kStride == 0;
  if (!sees_writes) return;
  for (Allocations::value_type& allocation : allocations) {
    if (std::exchange(allocation.second.is_written, false)) Protect(allocation, PROT_READ);
  }
}

void CountEarlyKernels() {
  early_kernels = 0;
  ForgetWrites();
}

void WatchEarlyAccesses() {
  early = {.is_watched = true, .has_written = false, .touched = {}};
  for (const Allocations::value_type& allocation : allocations) Protect(allocation, PROT_NONE);
}

void EndEarlyAccesses() {
  early.is_watched = false;
  for (const Allocations::value_type& allocation : allocations)
    Protect(allocation, allocation.second.is_written ? PROT_READ | PROT_WRITE : PROT_READ);
}

void ReadUnnoted(const void* from, const std::function<void()>& read) {
  const Allocations::value_type* allocation = AllocationAt(from);
  const bool is_hidden = early.is_watched && allocation != nullptr &&
                         std::ranges::find(early.touched, &allocation->second) ==
                             early.touched.end();
  if (is_hidden) Protect(*allocation, PROT_READ);
  read();
  if (is_hidden) Protect(*allocation, PROT_NONE);
}

bool HasWrittenEarly() { return early.has_written; }

bool HasTouchedWrittenMemory() {
  return std::ranges::any_of(early.touched, &Allocation::is_written);
}

}  // namespace diffserve::shim
