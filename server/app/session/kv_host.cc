// SPDX-License-Identifier: Apache-2.0
#include "server/app/session/kv_host.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/page_store/store_tier.h"
#include "engine/page_store/two_level_store.h"
#include "kernels/base/refusal.h"

namespace diffserve {
namespace {

constexpr char kHostFlag[] = "--kv-cache-host-memory";

// Without the flag, before the disk: enough to copy pages while others are written and read.
constexpr size_t kBytesBeforeDisk = size_t{64} << 20;

Status CheckHostMemory(const SessionPlan& plan, const MemorySize& memory, size_t least,
                       const char* of_what) {
  if (!plan.engine.enable_prefix_caching) {
    return InvalidArgument(std::string(kHostFlag) + " needs the prefix cache, which " +
                               "--no-enable-prefix-caching turns off",
                           kHostFlag);
  }
  if (static_cast<uint64_t>(memory.bytes) >= least) return {};
  return NotAllowed(std::string(kHostFlag) + " is " + memory.text,
                    "at least " + MiB(static_cast<double>(least)) + ", " + of_what, kHostFlag);
}

}  // namespace

Status CheckKvHost(const ServeOptions& serve, const SessionPlan& plan) {
  if (serve.kv_cache_host_memory.text.empty() || plan.on_gpu()) return {};
  return InvalidArgument(
      std::string(kHostFlag) +
          " keeps pages of a GPU; the CPU backend has its pages in host memory, which " +
          "--kv-cache-memory sets",
      kHostFlag);
}

Result<std::unique_ptr<PageTier>> OpenKvHost(const ServeOptions& serve, ModelSession& session) {
  const MemorySize& memory = serve.kv_cache_host_memory;
  if (memory.text.empty()) return std::unique_ptr<PageTier>();
  const SessionPlan& plan = session.plan();
  DS_RETURN_IF_ERROR(CheckKvHost(serve, plan));
  DS_RETURN_IF_ERROR(CheckHostMemory(plan, memory, plan.page_bytes + plan.snapshot_bytes(),
                                     "a page of this model"));
  Result<std::unique_ptr<HostStore>> store = HostStore::Create(session.kv().transfer(),
                                                               memory.bytes, plan.page_bytes);
  if (!store.ok()) return store.status();
  return TierOfGpu(std::move(store).value(), session);
}

Result<std::unique_ptr<HostStore>> OpenHostBeforeDisk(const ServeOptions& serve,
                                                      ModelSession& session) {
  const SessionPlan& plan = session.plan();
  const size_t largest = std::max(plan.page_bytes, plan.snapshot_bytes());
  const size_t units = TwoLevelStore::MinUnits((largest + plan.page_bytes - 1) / plan.page_bytes);
  const size_t least = units * plan.page_bytes;
  const MemorySize& memory = serve.kv_cache_host_memory;
  if (!memory.text.empty()) {
    DS_RETURN_IF_ERROR(
        CheckHostMemory(plan, memory, least, "pages of this model on their way to the disk"));
  }
  const size_t bytes = memory.text.empty() ? std::max(least, kBytesBeforeDisk)
                                           : static_cast<size_t>(memory.bytes);
  return HostStore::Create(session.kv().transfer(), static_cast<int64_t>(bytes), plan.page_bytes);
}

std::unique_ptr<PageTier> TierOfGpu(std::unique_ptr<EntryStore> store, ModelSession& session) {
  return std::make_unique<StoreTier>(
      std::move(store), StoreTier::MemoryIn(session.kv()),
      [transfer = session.kv().transfer()] { return transfer->MarkSteps(); });
}

}  // namespace diffserve
