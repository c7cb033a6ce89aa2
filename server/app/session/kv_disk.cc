// SPDX-License-Identifier: Apache-2.0
#include "server/app/session/kv_disk.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "engine/page_store/page_store.h"
#include "engine/page_store/store_tier.h"
#include "engine/page_store/two_level_store.h"
#include "kernels/base/refusal.h"
#include "kernels/process/log.h"
#include "server/app/session/kv_host.h"

namespace diffserve {
namespace {

namespace fs = std::filesystem;

// Raise it with every change of a page's layout, or of the bits that a kernel writes into a page.
constexpr int kPageBitsVersion = 1;
constexpr char kFlag[] = "--kv-cache-dir";

Status CheckServed(const SessionPlan& plan, const MemorySize& disk) {
  const EngineOptions& engine = plan.engine;
  if (!engine.enable_prefix_caching) {
    return InvalidArgument(
        "--kv-cache-dir needs the prefix cache, which --no-enable-prefix-caching turns off", kFlag);
  }
  if (engine.page_size > static_cast<int>(kMaxRecordTokens)) {
    return NotAllowed("--page-size is " + std::to_string(engine.page_size) + " with --kv-cache-dir",
                      "at most " + std::to_string(kMaxRecordTokens), kFlag);
  }
  const size_t largest = std::max(plan.page_bytes, plan.snapshot_bytes());
  const uint64_t least = kSegmentsMin * (RecordBytes(largest) + kSectorBytes);
  if (static_cast<uint64_t>(disk.bytes) >= least) return {};
  return NotAllowed("--kv-cache-disk is " + disk.text,
                    "at least " + MiB(static_cast<double>(least)) + ", " +
                        std::to_string(kSegmentsMin) + " pages or states of this model",
                    "--kv-cache-disk");
}

// What computes the bits and lays them out. Products of a GPU have the bits of its kernels, of
// cuBLASLt's, and of those that the driver compiles.
std::string DeviceText(const SessionPlan& plan) {
  if (!plan.on_gpu()) return "isa " + std::string(NameOf(plan.model.isa));
  return "gpu " + plan.device_name + " driver " + plan.driver + " cublas " +
         std::to_string(plan.matrix_library) + (plan.model.batch_invariant ? " invariant" : "");
}

// The weights that were loaded, as text.
std::string WeightsText(const ModelOptions& model) {
  if (model.dummy_weights) return "dummy " + std::to_string(model.seed);
  DS_CHECK(model.digest != nullptr, "weights are digested while they are read");
  return model.digest->Text();
}

}  // namespace

Result<std::unique_ptr<PageTier>> OpenKvDisk(const ServeOptions& serve, ModelSession& session) {
  if (serve.kv_cache_dir.empty()) return std::unique_ptr<PageTier>();
  const SessionPlan& plan = session.plan();
  DS_RETURN_IF_ERROR(CheckKvHost(serve, plan));
  DS_RETURN_IF_ERROR(CheckServed(plan, serve.kv_cache_disk));
  std::unique_ptr<HostStore> host;
  if (plan.on_gpu()) DS_RETURN_IF_ERROR(Assign(&host, OpenHostBeforeDisk(serve, session)));
  const auto begin = std::chrono::steady_clock::now();
  PageStore::Options options = {.directory = serve.kv_cache_dir,
                                .max_bytes = serve.kv_cache_disk.bytes,
                                .look_interval = std::chrono::seconds(1)};
  // Half of the segments may be short, because a process begins a new one.
  options.segment_bytes = std::max(
      options.segment_bytes, options.max_bytes / static_cast<int64_t>(options.max_segments / 2));
  std::error_code ignored;
  fs::create_directories(serve.kv_cache_dir, ignored);  // Open reports a failure
  options.fingerprint = KvDiskFingerprint(plan);
  Result<std::unique_ptr<PageStore>> store = PageStore::Open(options);
  if (!store.ok()) return store.status();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  Log(LogLevel::kInfo, "kv_disk_opened",
      {{"directory", (*store)->directory()},
       {"pages", std::to_string((*store)->num_records())},
       {"sibling_pages", std::to_string((*store)->num_sibling_records())},
       {"bytes", std::to_string((*store)->bytes())},
       {"bytes_max", std::to_string((*store)->max_bytes())},
       {"seconds", std::to_string(seconds.count())}});
  if (host == nullptr) {
    return std::unique_ptr<PageTier>(
        std::make_unique<StoreTier>(std::move(store).value(), StoreTier::MemoryIn(session.kv())));
  }
  return TierOfGpu(std::make_unique<TwoLevelStore>(std::move(host), std::move(store).value()),
                   session);
}

Fingerprint KvDiskFingerprint(const SessionPlan& plan) {
  const LogitQuant& logits = plan.model.logit_quant;
  std::string text = "version " + std::to_string(kPageBitsVersion) + "\n" + DeviceText(plan) +
                     "\nweights " + std::string(NameOf(plan.summary.weight_format)) + " " +
                     std::string(NameOf(plan.summary.linear_format)) + "\nlogits " +
                     std::to_string(logits.bits) + " " + std::string(NameOf(logits.scale)) +
                     "\npages of " + std::to_string(plan.engine.page_size);
  for (const KvFormat& layout : plan.layouts) text += " " + std::string(NameOf(layout.codec.dtype));
  text += "\n" + WeightsText(plan.model) + "\n" + plan.summary.config_text;
  // A key of the tier is a digest of any text.
  const TierKey first = RootTierKey(text), second = RootTierKey("second half " + text);
  Fingerprint fingerprint;
  std::memcpy(fingerprint.data(), &first, sizeof(first));
  std::memcpy(fingerprint.data() + sizeof(first), &second, sizeof(second));
  return fingerprint;
}

}  // namespace diffserve
