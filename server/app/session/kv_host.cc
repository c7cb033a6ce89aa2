// SPDX-License-Identifier: Apache-2.0
#include "server/app/session/kv_host.h"

#include <string>
#include <utility>

#include "engine/page_store/host_store.h"
#include "engine/page_store/store_tier.h"
#include "kernels/base/refusal.h"

namespace diffserve {
namespace {

constexpr char kHostFlag[] = "--kv-cache-host-memory";

Status CheckHostMemory(const SessionPlan& plan, const MemorySize& memory) {
  if (!plan.on_gpu()) {
    return InvalidArgument(
        std::string(kHostFlag) +
            " keeps pages of a GPU; the CPU backend has its pages in host memory, which " +
            "--kv-cache-memory sets",
        kHostFlag);
  }
  if (!plan.engine.enable_prefix_caching) {
    return InvalidArgument(std::string(kHostFlag) + " needs the prefix cache, which " +
                               "--no-enable-prefix-caching turns off",
                           kHostFlag);
  }
  const size_t least = plan.page_bytes + plan.snapshot_bytes();
  if (static_cast<uint64_t>(memory.bytes) >= least) return {};
  return NotAllowed(std::string(kHostFlag) + " is " + memory.text,
                    "at least " + MiB(static_cast<double>(least)) + ", a page of this model",
                    kHostFlag);
}

}  // namespace

Result<std::unique_ptr<PageTier>> OpenKvHost(const ServeOptions& serve, ModelSession& session) {
  const MemorySize& memory = serve.kv_cache_host_memory;
  if (memory.text.empty()) return std::unique_ptr<PageTier>();
  DS_RETURN_IF_ERROR(CheckHostMemory(session.plan(), memory));
  const std::shared_ptr<DeviceTransfer> transfer = session.kv().transfer();
  Result<std::unique_ptr<HostStore>> store = HostStore::Create(transfer, memory.bytes,
                                                               session.plan().page_bytes);
  if (!store.ok()) return store.status();
  return std::unique_ptr<PageTier>(
      std::make_unique<StoreTier>(std::move(store).value(), StoreTier::MemoryIn(session.kv()),
                                  [transfer] { return transfer->MarkSteps(); }));
}

}  // namespace diffserve
