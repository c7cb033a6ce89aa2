#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "kernels/attention/diff_attention.h"
#include "kernels/attention/diff_attention_kernel.h"
#include "kernels/base/check.h"
#include "kernels/base/cpu_isa.h"
#include "kernels/base/kernel_table.h"
#include "kernels/base/thread_pool.h"

namespace diffserve::cpu {
namespace {

// Queries that share a pass over the pages. More reuse K and V better; their outputs must stay in
// the L1 cache beside them.
constexpr int64_t kQueriesPerTask = 24;

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
  DS_CHECK(format.page_size % 16 == 0 && format.head_dim == spec.head_dim &&
               format.v_dim == spec.v_dim && format.k_maps == spec.k_maps &&
               format.num_groups == spec.num_kv_groups &&
               format.arrangement == KvArrangement::kSlotLanes,
           "the page format is not the attention's");
  DS_CHECK(spec.head_dim % 2 == 0, "odd head_dim");
}

// Tasks are numbered by sequence, then chunk of tokens, then group.
class TaskList {
 public:
  TaskList(const DiffAttentionArgs<float>& args, int tokens_per_task)
      : args_(args), tokens_per_task_(tokens_per_task) {
    for (const SequenceTokens& sequence : args.batch) {
      first_task_.push_back(num_tasks_);
      const int64_t chunks = (sequence.num_tokens + tokens_per_task - 1) / tokens_per_task;
      num_tasks_ += chunks * args.spec.num_kv_groups;
    }
  }

  int64_t num_tasks() const { return num_tasks_; }
  AttentionTask Get(int64_t task) const {
    const size_t index = static_cast<size_t>(
                             std::upper_bound(first_task_.begin(), first_task_.end(), task) -
                             first_task_.begin()) -
                         1;
    const SequenceTokens& sequence = args_.batch[index];
    const int64_t in_sequence = task - first_task_[index];
    const int token = static_cast<int>(in_sequence / args_.spec.num_kv_groups) * tokens_per_task_;
    return {.pages = sequence.pages,
            .group = static_cast<int>(in_sequence % args_.spec.num_kv_groups),
            .first_row = sequence.first_row + token,
            .position = sequence.position + token,
            .num_tokens = std::min(tokens_per_task_, sequence.num_tokens - token)};
  }

 private:
  const DiffAttentionArgs<float>& args_;
  int tokens_per_task_;
  int64_t num_tasks_ = 0;
  std::vector<int64_t> first_task_;  // of each sequence
};

}  // namespace

void DiffAttention(const DiffAttentionArgs<float>& args, CpuIsa isa, ThreadPool& pool) {
  CheckSpec(args);
  const KernelTable& kernels = KernelsFor(isa);
  const AttentionCall call = CallOf(args);
  const int tokens_per_task = static_cast<int>(
      std::max<int64_t>(1, kQueriesPerTask / AttentionQueriesPerToken(call)));
  const TaskList tasks(args, tokens_per_task);
  std::atomic<int64_t> next_task{0};
  pool.Run([&](int) {
    const auto workspace = std::make_unique_for_overwrite<float[]>(
        static_cast<size_t>(AttentionWorkspaceFloats(call, tokens_per_task)));
    for (int64_t task = next_task.fetch_add(1); task < tasks.num_tasks();
         task = next_task.fetch_add(1)) {
      kernels.attention(call, tasks.Get(task), workspace.get());
    }
  });
}

}  // namespace diffserve::cpu
