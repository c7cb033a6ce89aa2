// SPDX-License-Identifier: Apache-2.0
// The program's malloc: glibc's, which uses the memory reserve before it fails. gRPC's core and the
// Rust library end the process when malloc fails and never call the handler of operator new; this
// covers them. Linked only into the program, and not with sanitizers, which have their own malloc.
#include <malloc.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "kernels/base/memory_reserve.h"

extern "C" {

void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* memory, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);

void* malloc(size_t bytes) noexcept {
  void* memory = __libc_malloc(bytes);
  if (memory != nullptr) [[likely]]
    return memory;
  if (!diffserve::GiveFromMemoryReserve(bytes)) return nullptr;
  memory = __libc_malloc(bytes);
  return memory != nullptr ? memory : diffserve::TakeMemoryReservePiece(bytes);
}

void* calloc(size_t count, size_t bytes) noexcept {
  void* memory = __libc_calloc(count, bytes);
  if (memory != nullptr) [[likely]]
    return memory;
  size_t all = 0;
  if (__builtin_mul_overflow(count, bytes, &all)) return nullptr;
  memory = malloc(all);
  return memory == nullptr ? nullptr : std::memset(memory, 0, all);
}

void* realloc(void* old, size_t bytes) noexcept {
  if (old == nullptr) return malloc(bytes);
  void* memory = __libc_realloc(old, bytes);
  if (memory != nullptr || bytes == 0) [[likely]]
    return memory;
  const size_t held = malloc_usable_size(old);
  if (bytes <= held) return old;
  memory = malloc(bytes);
  if (memory == nullptr) return nullptr;
  std::memcpy(memory, old, held);
  std::free(old);
  return memory;
}

void* memalign(size_t alignment, size_t bytes) noexcept {
  void* const memory = __libc_memalign(alignment, bytes);
  if (memory != nullptr) [[likely]]
    return memory;
  return diffserve::GiveFromMemoryReserve(bytes) ? __libc_memalign(alignment, bytes) : nullptr;
}

void* aligned_alloc(size_t alignment, size_t bytes) noexcept { return memalign(alignment, bytes); }

int posix_memalign(void** memory, size_t alignment, size_t bytes) noexcept {
  if (alignment % sizeof(void*) != 0 || alignment == 0 || (alignment & (alignment - 1)) != 0)
    return EINVAL;
  void* const made = memalign(alignment, bytes);
  if (made == nullptr) return ENOMEM;
  *memory = made;
  return 0;
}

// gRPC's locks map what they keep of threads.
void* mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  const auto map = [&] {
    return reinterpret_cast<void*>(
        syscall(SYS_mmap, address, bytes, protection, flags, fd, offset));
  };
  void* const memory = map();
  if (memory != MAP_FAILED || errno != ENOMEM) [[likely]]
    return memory;
  return diffserve::UnmapFromMemoryReserve(bytes) ? map() : memory;
}

}  // extern "C"
