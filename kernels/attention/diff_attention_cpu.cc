// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "kernels/attention/attention_memory.h"
#include "kernels/attention/diff_attention.h"
#include "kernels/attention/diff_attention_kernel.h"
#include "kernels/base/cpu_isa.h"
#include "kernels/base/kernels_for.h"
#include "kernels/base/thread_pool.h"
#include "kernels/process/check.h"

namespace diffserve::cpu {
namespace {

using Pass = AttentionTask::Pass;

// Queries per task. More queries read K and V less often. But their scores, a float per slot, must
// stay in the L2 cache, or at long contexts in a part of the L3 cache.
constexpr int64_t kQueriesPerTask = 48;
constexpr int64_t kQueriesPerTaskMin = 24;
constexpr int64_t kScoresPerTask = 768 << 10;

// A task is shared if it exceeds a worker's part of the work divided by this number.
constexpr int64_t kPartsPerWorker = 4;
// Minimum number of ranges in a share.
constexpr int64_t kRangesPerPart = 2;
// A worker takes consecutive tasks at once, of at most its part of the work divided by this number.
constexpr int64_t kTurnsPerWorker = 16;
// Reading K and V costs about as much as the arithmetic of this many tokens.
constexpr int64_t kTokensPerRead = 3;
// Maximum for all shared tasks together, in floats; tasks beyond it are not shared.
constexpr int64_t kSharedFloatsMax = int64_t{64} << 20;

AttentionCall CallOf(const DiffAttentionArgs<float>& args) {
  const DiffSpec& spec = args.spec;
  return {
      .num_q1_heads = spec.num_q1_heads,
      .num_q2_heads = spec.num_q2_heads,
      .kv = args.kv,
      .q = args.q,
      .out = args.out,
      .q_width = spec.q_width(),
      .out_width = spec.out_width(),
      .scale = args.scale,
      .lambda = args.lambda,
      .lambda_rows = spec.lambda_kind == LambdaKind::kPerTokenHead ? args.lambda_rows : nullptr,
      .has_sub_norm = spec.sub_norm != SubNorm::kNone,
      .sub_norm_eps = spec.sub_norm_eps,
      .sub_norm_weight = spec.sub_norm == SubNorm::kAffine ? args.sub_norm_weight : nullptr,
      .out_scale = args.out_scale,
      .window = WindowSlots(args.window),
      .logit_quant = args.logit_quant,
  };
}

void CheckSpec(const DiffAttentionArgs<float>& args) {
  const DiffSpec& spec = args.spec;
  const KvFormat& format = args.kv.format;
  DS_CHECK(spec.num_kv_groups > 0 && spec.num_q1_heads % spec.num_kv_groups == 0 &&
               spec.num_q2_heads % spec.num_kv_groups == 0,
           "the groups do not divide the query heads");
  DS_CHECK(spec.num_q2_heads == 0 || spec.num_q1_heads % spec.num_q2_heads == 0,
           "noise heads do not divide signal heads");
  DS_CHECK(args.window >= 0, "a window of a negative number of slots");
  DS_CHECK(format.page_size % 16 == 0 && format.head_dim == spec.head_dim &&
               format.v_dim == spec.v_dim && format.k_maps == spec.k_maps &&
               format.num_groups == spec.num_kv_groups &&
               format.arrangement == KvArrangement::kSlotLanes,
           "the page format is not the attention's");
  DS_CHECK(TakesPages(spec, format.codec), "no kernel reads such pages of these heads");
}

AttentionFunction FunctionFor(DType pages, CpuIsa isa) {
  switch (pages) {
    case DType::kFloat32:
      return KernelsFor<FloatAttention>(isa).float32;
    case DType::kFloat16:
      return KernelsFor<FloatAttention>(isa).float16;
    case DType::kBFloat16:
      return KernelsFor<BFloat16Attention>(isa).bfloat16;
    case DType::kInt8:
      return KernelsFor<CodeAttention>(isa).int8;
    case DType::kInt8KInt4V:
      return KernelsFor<CodeAttention>(isa).int8k_int4v;
    case DType::kInt4:
      return KernelsFor<CodeAttention>(isa).int4;
    case DType::kFp8E4M3:
      break;
  }
  DS_CHECK(false, "no CPU kernel reads pages of E4M3 numbers");
}

int64_t TokensPerTask(const AttentionCall& call, const SequenceTokens& sequence) {
  const int64_t slots = std::min<int64_t>(sequence.position + sequence.num_tokens,
                                          call.window + kAttentionRangeSlots);
  const int64_t queries = std::clamp(kScoresPerTask / std::max<int64_t>(slots, 1),
                                     kQueriesPerTaskMin, kQueriesPerTask);
  return std::max<int64_t>(1, queries / call.QueriesPerToken());
}

// Ordered by sequence and then group, so that workers meet in the pages of a group. The tokens that
// see the most slots come first.
std::vector<AttentionTask> TasksOf(const AttentionCall& call,
                                   std::span<const SequenceTokens> batch) {
  std::vector<AttentionTask> tasks;
  for (const SequenceTokens& sequence : batch) {
    const int step = static_cast<int>(TokensPerTask(call, sequence));
    for (int group = 0; group < call.kv.format.num_groups; ++group) {
      for (int end = sequence.num_tokens; end > 0; end -= step) {
        const int token = std::max(0, end - step);
        AttentionTask task = {.pages = sequence.pages,
                              .group = group,
                              .first_row = sequence.first_row + token,
                              .position = sequence.position + token,
                              .num_tokens = end - token,
                              .first_slot = FirstSlotSeen(sequence.position + token, call.window),
                              .pass = Pass::kAll,
                              .first_range = 0,
                              .end_range = 0,
                              .memory = nullptr};
        task.first_range = task.min_range();
        task.end_range = task.first_range + task.num_ranges();
        tasks.push_back(task);
      }
    }
  }
  return tasks;
}

int64_t CostOf(const AttentionTask& task) {
  return (task.end_range - task.first_range) * (task.num_tokens + kTokensPerRead);
}
int64_t CostOf(std::span<const AttentionTask> tasks) {
  int64_t cost = 0;
  for (const AttentionTask& task : tasks) cost += CostOf(task);
  return cost;
}

// The number of workers that share each task, and the memory of all.
struct Plan {
  std::vector<int> parts;        // per task; 1: one worker does it
  int64_t task_floats = 0;       // for a task that one worker does
  int64_t workspace_floats = 0;  // per worker
  int64_t shared_floats = 0;     // for all shared tasks
};

Plan PlanOf(const AttentionCall& call, const std::vector<AttentionTask>& tasks, int num_workers) {
  const int64_t part_cost = std::max<int64_t>(1, CostOf(tasks) / (kPartsPerWorker * num_workers));
  Plan plan;
  for (const AttentionTask& task : tasks) {
    const AttentionSizes sizes = AttentionSizes::Of(call, task);
    const int64_t parts = std::min((CostOf(task) + part_cost - 1) / part_cost,
                                   task.num_ranges() / kRangesPerPart);
    const int64_t floats = TaskMemory::Floats(sizes, /*is_shared=*/true);
    const bool is_shared = num_workers > 1 && parts > 1 &&
                           plan.shared_floats + floats <= kSharedFloatsMax;
    plan.parts.push_back(is_shared ? static_cast<int>(parts) : 1);
    if (is_shared) {
      plan.shared_floats += floats;
    } else {
      plan.task_floats = std::max(plan.task_floats, TaskMemory::Floats(sizes, /*is_shared=*/false));
    }
    plan.workspace_floats = std::max(plan.workspace_floats, WorkerFloats(sizes));
  }
  return plan;
}

// Lists of passes; each list starts after the previous one is done. All but the first belong to
// shared tasks.
using PassLists = std::array<std::vector<AttentionTask>, 4>;

void AddShared(AttentionTask task, int parts, bool has_exponentials, PassLists& lists) {
  for (int part = 0; part < parts; ++part) {
    const Share ranges = ShareOf(task.num_ranges(), part, parts);
    task.first_range = task.min_range() + ranges.begin;
    task.end_range = task.min_range() + ranges.end;
    task.pass = Pass::kScores;
    lists[0].push_back(task);
    task.pass = Pass::kExponentials;
    if (has_exponentials) lists[1].push_back(task);
    task.pass = Pass::kValues;
    lists[2].push_back(task);
  }
  task.pass = Pass::kFinish;
  lists[3].push_back(task);
}

PassLists ListsOf(const AttentionCall& call, const std::vector<AttentionTask>& tasks,
                  const Plan& plan, float* shared) {
  PassLists lists;
  for (size_t i = 0; i < tasks.size(); ++i) {  // tasks that others wait for come first
    if (plan.parts[i] == 1) continue;
    AttentionTask task = tasks[i];
    task.memory = shared;
    shared += TaskMemory::Floats(AttentionSizes::Of(call, task), /*is_shared=*/true);
    AddShared(task, plan.parts[i], call.logit_quant.needs_row(), lists);
  }
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (plan.parts[i] == 1) lists[0].push_back(tasks[i]);
  }
  return lists;
}

// The ends of the runs of tasks that a worker takes at once.
std::vector<size_t> TurnsOf(std::span<const AttentionTask> list, int num_workers) {
  const int64_t limit = CostOf(list) / (kTurnsPerWorker * num_workers);
  std::vector<size_t> ends;
  int64_t cost = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (i > 0 && cost + CostOf(list[i]) > limit) {
      ends.push_back(i);
      cost = 0;
    }
    cost += CostOf(list[i]);
  }
  ends.push_back(list.size());
  return ends;
}

}  // namespace

bool TakesPages(const DiffSpec& spec, const KvCodec& codec) {
  const bool has_parts = spec.v_dim == spec.head_dim || spec.v_dim == 2 * spec.head_dim;
  return std::ranges::find(kPageTypes, codec.dtype) != std::end(kPageTypes) &&
         spec.head_dim % codec.k_pack == 0 && spec.head_dim % 2 == 0 &&
         (codec.scale_bits == 0 || has_parts);
}

int64_t AttentionWorkspaceBytes(const DiffSpec& spec, int64_t num_slots, int num_workers) {
  DiffAttentionArgs<float> args;
  args.spec = spec;
  AttentionCall call = CallOf(args);
  call.kv.format = KvFormat::Of(spec, 16, DType::kFloat32);
  AttentionTask task = {};
  task.num_tokens = static_cast<int>(
      std::min(num_slots, TokensPerTask(call, {.num_tokens = static_cast<int>(num_slots)})));
  task.position = static_cast<int>(num_slots) - task.num_tokens;
  const AttentionSizes sizes = AttentionSizes::Of(call, task);
  return num_workers * (TaskMemory::Floats(sizes, /*is_shared=*/false) + WorkerFloats(sizes)) *
         int64_t{sizeof(float)};
}

float* AttentionWorkspace::Floats(int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  if (bytes > buffer_.size_bytes()) {
    buffer_ = Buffer();
    buffer_ = Buffer(bytes + bytes / 2);
  }
  return buffer_.as<float>();
}

void DiffAttention(const DiffAttentionArgs<float>& args, AttentionWorkspace& workspace, CpuIsa isa,
                   ThreadPool& pool) {
  CheckSpec(args);
  const AttentionFunction run = FunctionFor(args.kv.format.codec.dtype, isa);
  const AttentionCall call = CallOf(args);
  const std::vector<AttentionTask> tasks = TasksOf(call, args.batch);
  if (tasks.empty()) return;
  const Plan plan = PlanOf(call, tasks, pool.num_threads());
  const int64_t worker_floats = plan.task_floats + plan.workspace_floats;
  float* memory = workspace.Floats(plan.shared_floats + pool.num_threads() * worker_floats);
  for (const std::vector<AttentionTask>& list :
       ListsOf(call, tasks, plan, memory + pool.num_threads() * worker_floats)) {
    if (list.empty()) continue;
    const std::vector<size_t> turns = TurnsOf(list, pool.num_threads());
    std::atomic<size_t> next{0};
    pool.Run([&](int worker) {
      float* mine = memory + worker * worker_floats;
      for (size_t turn = next.fetch_add(1); turn < turns.size(); turn = next.fetch_add(1)) {
        for (size_t i = turn == 0 ? 0 : turns[turn - 1]; i < turns[turn]; ++i) {
          AttentionTask task = list[i];
          if (task.memory == nullptr) task.memory = mine + plan.workspace_floats;
          run(call, task, i + 1 < turns[turn] ? &list[i + 1] : nullptr, mine);
        }
      }
    });
  }
}

}  // namespace diffserve::cpu
