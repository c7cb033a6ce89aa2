// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/kernels_for.h"
#include "kernels/base/thread_pool.h"
#include "kernels/ops/rope_append.h"
#include "kernels/ops/rope_append_kernel.h"
#include "kernels/process/check.h"

namespace diffserve::cpu {
namespace {

void AppendRow(const RopeAppendArgs<float>& args, const RopeKernels& kernels,
               const SequenceTokens& sequence, int row) {
  const DiffSpec& spec = args.spec;
  const KvFormat& format = args.kv.format;
  const int position = sequence.position + row;
  const int64_t batch_row = sequence.first_row + row;
  RopeRow rope_row = {
      .qkv = args.qkv + batch_row * args.width(),
      .q = args.q + batch_row * spec.q_width(),
      .cos = nullptr,
      .sin = nullptr,
      .is_rotated = args.style != RopeStyle::kNone,
      .is_interleaved = args.style == RopeStyle::kInterleaved,
      .has_kv = args.has_kv,
      .num_q_heads = spec.num_q1_heads + spec.num_q2_heads,
      .kv = args.kv,
      .page_id = args.has_kv ? sequence.pages[position / format.page_size] : -1,
      .slot = position % format.page_size,
  };
  if (rope_row.is_rotated) {
    DS_CHECK(position < args.rope.num_positions, "position beyond the rope table");
    rope_row.cos = args.rope.cos + int64_t{position} * args.rope.half_dim;
    rope_row.sin = args.rope.sin + int64_t{position} * args.rope.half_dim;
  }
  kernels.row(rope_row);
}

}  // namespace

int CutRow(const SequenceTokens& sequence, int row, const KvCodec& codec) {
  if (row <= 0) return 0;
  if (row >= sequence.num_tokens) return sequence.num_tokens;
  const int pack = codec.v_bits < 8 ? codec.v_pack : 1;
  const int position = (sequence.position + row + pack - 1) / pack * pack;
  return std::min(position - sequence.position, sequence.num_tokens);
}

void RopeAppend(const RopeAppendArgs<float>& args, CpuIsa isa, ThreadPool& pool) {
  const DiffSpec& spec = args.spec;
  DS_CHECK(args.style == RopeStyle::kNone || 2 * args.rope.half_dim == spec.head_dim,
           "the rope table's width is not the head's");
  DS_CHECK(spec.head_dim <= 1024, "head_dim above 1024");
  const auto& kernels = KernelsFor<RopeKernels>(isa);
  int64_t num_tokens = 0;
  for (const SequenceTokens& sequence : args.batch) num_tokens += sequence.num_tokens;
  const int num_workers = num_tokens * args.width() < kElementsWorthWaking ? 1 : pool.num_threads();
  const auto share = [&](int worker) {
    const Share mine = ShareOf(static_cast<int>(num_tokens), worker, num_workers);
    int begin = 0;  // first row of the sequence, among all rows
    for (const SequenceTokens& sequence : args.batch) {
      const int end = CutRow(sequence, mine.end - begin, args.kv.format.codec);
      for (int row = CutRow(sequence, mine.begin - begin, args.kv.format.codec); row < end; ++row)
        AppendRow(args, kernels, sequence, row);
      begin += sequence.num_tokens;
    }
  };
  if (num_workers == 1) {
    share(0);
  } else {
    pool.Run(share);
  }
}

}  // namespace diffserve::cpu
