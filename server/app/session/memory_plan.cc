// SPDX-License-Identifier: Apache-2.0
#include "server/app/session/memory_plan.h"

#include <algorithm>
#include <cstdio>
#include <limits>

#include "kernels/base/refusal.h"

namespace diffserve {
namespace {

// Default and maximum share that KV pages take of the memory that is free after loading the
// weights. A GPU serves only the model, so its pages take the maximum by default.
constexpr double kDefaultKvShare = 0.4;
constexpr double kLargestKvShare = 0.9;

// Bytes for KV pages under the options.
Result<double> KvBudget(const MemoryDemand& demand, double least_bytes) {
  const double free = demand.free_bytes;
  if (demand.asked.text.empty()) {
    if (demand.on_gpu) return free * kLargestKvShare;
    return std::max(free * kDefaultKvShare, std::min(least_bytes, free * kLargestKvShare));
  }
  // CUDA loads further kernels and graphs as they are first used.
  const double usable = demand.on_gpu ? free * kLargestKvShare : free;
  const double wanted = demand.asked.share > 0 ? std::min(demand.asked.share * free, usable)
                                               : static_cast<double>(demand.asked.bytes);
  if (wanted > usable) {
    return NotAllowed("--kv-cache-memory is " + MiB(wanted),
                      std::string("at most ") + (demand.on_gpu ? "0.9 of " : "") + "the " +
                          MiB(free) + " that the weights leave free",
                      "--kv-cache-memory");
  }
  return wanted;
}

// State slots and window pages.
struct States {
  int num_slots = 0, num_window_pages = 0;
  double bytes = 0;  // infinite if their number fits no int
};

// For `sequences` running sequences, as many snapshots, and what is verified.
States StatesOf(const MemoryDemand& demand, int sequences, bool proposes) {
  const EngineOptions& engine = demand.engine;
  const LayoutBytes& layout = demand.layout;
  if (layout.slot == 0 && layout.window_page == 0) return {};
  const int snapshots = engine.enable_prefix_caching && demand.sequences == 0 ? sequences : 0;
  // The states of the rows that a step verifies, and of those that the step before it did.
  const int rows = proposes ? 2 * EngineOptions::kVerifiedRowsMax : 0;
  States states = {.num_slots = sequences + snapshots + rows};
  states.bytes = static_cast<double>(layout.slot) * states.num_slots;
  if (layout.window_page == 0) return states;
  constexpr int64_t kMax = std::numeric_limits<int>::max();
  const int64_t pages = engine.WindowPagesMin(sequences) +
                        snapshots * engine.WindowPagesPerSequence();
  states.num_window_pages = static_cast<int>(std::min(pages, kMax));
  states.bytes = pages > kMax ? std::numeric_limits<double>::infinity()
                              : states.bytes + static_cast<double>(layout.window_page) *
                                                   static_cast<double>(pages);
  return states;
}

// Whether proposals that no flag asks for stay: not if the states that they go back to would take
// much room from sequences. `pages_bytes`: the KV pages of one sequence.
bool KeepsProposing(const MemoryDemand& demand, double pages_bytes) {
  if (demand.engine.speculative_tokens == 0) return false;
  if (!demand.may_stop_proposing || demand.layout.slot == 0) return true;
  const double one = StatesOf(demand, 1, /*proposes=*/true).bytes;
  const Result<double> budget = KvBudget(demand, pages_bytes + one);
  if (!budget.ok()) return true;
  const double room = std::min(budget.value() / 2, budget.value() - pages_bytes);
  const double bytes_of_rows = static_cast<double>(2 * EngineOptions::kVerifiedRowsMax) *
                               static_cast<double>(demand.layout.slot);
  return bytes_of_rows <= room / 10 && one <= room;
}

Status TooLittle(const MemoryDemand& demand, double least_bytes, double budget,
                 const std::string& advice) {
  const int sequences = std::max(1, demand.sequences);
  const std::string flag = sequences == 1 ? "--max-model-len" : "--batch";
  return NotAllowed(
      (sequences == 1 ? "" : "states of " + std::to_string(sequences) + " sequences beside ") +
          "one sequence of " + std::to_string(demand.kv.least_tokens) + " tokens " +
          (sequences == 1 ? "needs " : "need ") + MiB(least_bytes) + " of KV pages",
      MiB(budget) + " of " + MiB(demand.free_bytes) + " free; lower " + flag +
          " or raise --kv-cache-memory" + advice,
      flag);
}

}  // namespace

Result<MemoryPlan> PlanMemory(const MemoryDemand& demand, const FormatsThatFit& advice) {
  const EngineOptions& engine = demand.engine;
  const auto page_bytes = static_cast<double>(demand.layout.page);
  const int64_t least = std::max<int64_t>(1, PagesFor(demand.kv.least_tokens, engine.page_size));
  const double pages_bytes = static_cast<double>(least) * page_bytes;
  const bool proposes = KeepsProposing(demand, pages_bytes);

  const double least_bytes = pages_bytes +
                             StatesOf(demand, std::max(1, demand.sequences), proposes).bytes;
  const Result<double> budget = KvBudget(demand, least_bytes);
  if (!budget.ok()) return budget.status();
  if (budget.value() < least_bytes) {
    return TooLittle(demand, least_bytes, budget.value(),
                     demand.asked.text.empty() ? advice(least_bytes / kLargestKvShare) : "");
  }
  // How many sequences run at once if layers keep states or see a window: those asked for, or as
  // many as fit half of the memory.
  const bool has_engine = demand.sequences == 0;
  const int asked = has_engine ? engine.MaxRunning() : demand.sequences;
  const double room = std::min(budget.value() / 2, budget.value() - pages_bytes);
  int sequences = asked;
  States states = StatesOf(demand, sequences, proposes);
  while (states.bytes > room && sequences > 1 && has_engine)
    states = StatesOf(demand, --sequences, proposes);

  const auto fitting = static_cast<int64_t>((budget.value() - states.bytes) / page_bytes);
  // An explicit amount is used in full, and so is a GPU's share in a server.
  const bool in_full = !demand.asked.text.empty() || (demand.on_gpu && demand.fills_the_gpu);
  const int64_t wanted = in_full ? fitting : PagesFor(demand.kv.wanted_tokens, engine.page_size);
  const int64_t pages = std::min<int64_t>(std::max(least, std::min(fitting, wanted)),
                                          std::numeric_limits<int>::max() / 2);
  return MemoryPlan{.num_pages = static_cast<int>(pages),
                    .num_state_slots = states.num_slots,
                    .num_window_pages = states.num_window_pages,
                    .max_num_seqs = sequences == asked ? engine.max_num_seqs : sequences,
                    .stops_proposing = engine.speculative_tokens > 0 && !proposes};
}

std::string MiB(double bytes) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.1f MiB", bytes / (1 << 20));
  return text;
}

}  // namespace diffserve
