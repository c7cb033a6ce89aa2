// SPDX-License-Identifier: Apache-2.0
// Device memory in pages of its own, so that the first access to each allocation can be seen.
// A kernel that runs before the one before it has ended may read only what no kernel has written
// since the host or a copy last waited, and what the one before will not write; it may write
// nothing. Bulk copies may also read a part that does not change of an allocation that does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace diffserve::shim {

// Filled with NaNs; nullptr: there is no memory.
void* AllocatePages(size_t size_bytes);
void FreePages(void* data);

// Runs write(), which writes to the allocation at `to`, as a copy and not as a kernel does.
void WriteByCopy(const void* to, const std::function<void()>& write);
// The host, or a copy that no kernel overtakes, has waited for all that kernels wrote.
void ForgetWrites();
// To protect memory takes longer than small kernels do, so after this many early kernels a sample
// is watched: one early kernel in 101, and the writes after one host wait in eleven.
inline constexpr int64_t kAllWatched = 1000;
// Whether it is known what kernels have written since the host last waited.
bool SeesWrites();
// Counts early kernels from 0. REQUIRES: the host has waited for all streams.
void CountEarlyKernels();

// Between these two a kernel runs that has not waited yet.
void WatchEarlyAccesses();
void EndEarlyAccesses();
// Runs read(), which reads from the allocation at `from`, without noting the access. The caller
// sees to it that what is read does not change.
void ReadUnnoted(const void* from, const std::function<void()>& read);
bool HasWrittenEarly();
// Whether what it accessed has been written by a kernel: before, or since.
bool HasTouchedWrittenMemory();

}  // namespace diffserve::shim
