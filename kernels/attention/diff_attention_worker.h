// SPDX-License-Identifier: Apache-2.0
// A task is a few tokens of one sequence and one group; each (token, query head) of either map is a
// query. The slots of a sequence are cut into ranges by absolute position. A query begins where its
// window does and ends at its own position, so no other slot enters it, not even times zero. No bit
// depends on whether one worker takes all ranges or several share them.
//
// Only *.isa.cc files include this. The namespace is unnamed because the compiler inlines what is
// called once only if no other file can call it: attention is up to 5 % faster.
#pragma once

#include "kernels/attention/attention_memory.h"
#include "kernels/attention/diff_attention_kernel.h"
#include "kernels/attention/kv_loads.h"
#include "kernels/attention/quantise_lanes.h"
#include "kernels/attention/range_runs.h"
#include "kernels/attention/seen_slots.h"
#include "kernels/attention/softmax_lanes.h"
#include "kernels/attention/tile_functions.h"
#include "kernels/base/simd.h"

namespace diffserve::DS_ISA {
namespace {

constexpr float kLog2E = 1.44269504f;

// Queries are numbered map 1 first, within a map by token and then head; outputs have the numbers
// of map 1's queries.
template <typename Codec>
class Worker {
 public:
  using Loads = KvLoads<Codec>;
  using Operand = OperandOf<Codec>;

  Worker(const AttentionCall& call, const AttentionTask& task, const AttentionTask* following,
         float* workspace)
      : call_(call),
        task_(task),
        following_(following),
        kv_{call.kv.base, call.kv.format.As<Codec, KvArrangement::kSlotLanes>()},
        format_(kv_.format),
        sizes_(AttentionSizes::Of(call, task)),
        heads1_(call.num_q1_heads / format_.num_groups),
        heads2_(call.num_q2_heads / format_.num_groups),
        min_range_(task.min_range()),
        outputs_(task.num_tokens * heads1_),
        queries_(task.num_tokens * (heads1_ + heads2_)),
        memory_(MemoryOf(task, sizes_)),
        mine_(MineOf(workspace, sizes_)),
        seen_{mine_.first_seen, mine_.end_seen} {
    for (int query = 0; query < queries_; ++query) {
      const int position = task_.position + TokenOf(query);
      mine_.first_seen[query] = FirstSlotSeen(position, call.window);
      mine_.end_seen[query] = position + 1;
    }
  }

  void Run() {
    const bool all = task_.pass == AttentionTask::Pass::kAll;
    if (all || task_.pass == AttentionTask::Pass::kScores) {
      ForEachTile([this](int begin, int end, int) { PackQueries(begin, end); });
      ScoreRanges();
    }
    if (call_.logit_quant.needs_row() &&
        (all || task_.pass == AttentionTask::Pass::kExponentials)) {
      QuantiseRanges();
    }
    if (all || task_.pass == AttentionTask::Pass::kValues) {
      for (int query = 0; query < queries_; ++query) JoinRanges(query);
      AddRanges(!all);
    }
    if (all || task_.pass == AttentionTask::Pass::kFinish) {
      for (int output = 0; output < outputs_; ++output) {
        if (!all) AddKept(output);
        float* sums = all ? KeptSums(min_range_, output) : Sums(output);
        if constexpr (Codec::Description().transforms_v())
          TransformParts(sums, format_.v_dim, format_.head_dim);
        Finish(output, sums);
      }
    }
  }

 private:
  static TaskMemory MemoryOf(const AttentionTask& task, const AttentionSizes& sizes) {
    MemoryCutter cutter(task.memory);
    return TaskMemory::Of(sizes, task.pass != AttentionTask::Pass::kAll, cutter);
  }
  static WorkerMemory<Operand> MineOf(float* workspace, const AttentionSizes& sizes) {
    MemoryCutter cutter(workspace);
    return WorkerMemory<Operand>::Of(sizes, cutter);
  }

  int TokenOf(int query) const {
    return query < outputs_ ? query / heads1_ : (query - outputs_) / heads2_;
  }
  // The first slot of a range that a query of the task sees, and one past the last.
  int FirstOf(int range) const { return seen_.First(range, 0); }
  int EndOf(int range) const { return MinInt(kRange, task_.num_slots() - range * kRange); }
  float* ScoresOf(int range, int query) const {
    return memory_.scores + (int64_t{range - min_range_} * queries_ + query) * kRange;
  }
  // Index of a query's statistics of a range.
  int64_t StatisticOf(int range, int query) const {
    return query * sizes_.range_stride + range - min_range_;
  }
  // The sums of an output over a range; a buffer per range, or one for all.
  float* KeptSums(int range, int output) const {
    return memory_.range_sums + (range - min_range_) * sizes_.SumFloats() +
           output * sizes_.out_stride;
  }
  float* Sums(int output) const { return mine_.sums + output * sizes_.out_stride; }

  // Calls body(begin, end, k_map) for runs of at most kTile queries that read the same K.
  template <typename Body>
  void ForEachTile(Body body) {
    const int split = format_.k_maps == 2 ? outputs_ : queries_;
    for (int begin = 0; begin < split; begin += kTile) body(begin, MinInt(begin + kTile, split), 0);
    for (int begin = split; begin < queries_; begin += kTile)
      body(begin, MinInt(begin + kTile, queries_), 1);
  }

  Operand* QueriesOf(int begin) const {
    return mine_.q + static_cast<int64_t>(begin) * (format_.head_dim / kQNumbers<Codec>);
  }
  // A tile's q, transposed to [head_dim][end - begin].
  void PackQueries(int begin, int end) {
    Operand* to = QueriesOf(begin);
    for (int query = begin; query < end; ++query) {
      const bool first_map = query < outputs_;
      const int heads = first_map ? heads1_ : heads2_;
      const int in_map = first_map ? query : query - outputs_;
      const int head = (first_map ? 0 : call_.num_q1_heads) + task_.group * heads + in_map % heads;
      const float* from = call_.q + (task_.first_row + in_map / heads) * call_.q_width +
                          static_cast<int64_t>(head) * format_.head_dim;
      if constexpr (kHasScales<Codec>) {
        const QueryCodes codes = QuantiseQuery<Codec::Description().transforms_k()>(
            from, format_.head_dim, to + query - begin, end - begin);
        mine_.q_scales[query] = codes.scale;
        mine_.q_sums[query] = codes.sum;
      } else {
        for (int d = 0; d < format_.head_dim; d += kQNumbers<Codec>)
          to[d / kQNumbers<Codec> * (end - begin) + query - begin] = Loads::OperandOf(from + d);
      }
    }
  }

  // Stage 1: scores of the slots. All slots that the query sees, as exponents of 2, kept in memory.
  // Scores to be quantised are logits until then. If quantising needs all of a query's logits, it
  // waits for them, and so do the later stages; otherwise a range's scores become p at once.

  void ScoreRanges() {
    RangeRuns<Codec> runs(kv_, task_);
    // A step's K stays in the L1 cache while several tiles read it.
    const int step = queries_ / format_.k_maps <= kTile ? kRange : kStep;
    for (int range = task_.first_range; range < task_.end_range; ++range) {
      runs.LocateK(range);
      for (int first = FirstOf(range) / step * step; first < EndOf(range); first += step)
        ScoreStep(range, first, MinInt(first + step, EndOf(range)), runs);
      for (int query = 0; query < queries_; ++query) {
        if (call_.logit_quant.needs_row()) {
          KeepExtent(range, query);
        } else {
          if (call_.logit_quant.is_on()) QuantiseTiles(range, query);
          Exponentials(range, query);
        }
      }
    }
  }

  // Scores the range's slots [first, end_slot).
  void ScoreStep(int range, int first, int end_slot, const RangeRuns<Codec>& runs) {
    const int run = first / kRun;
    ForEachTile([&](int begin, int end, int k_map) {
      // The first tile of each map prefetches for all tiles.
      const bool fetches = begin == 0 || (k_map == 1 && begin == outputs_);
      ScoreQueries(begin, end, k_map, range * kRange + first, end_slot - first,
                   runs.numbers() + run, runs.scales() + run, fetches);
    });
  }

  void ScoreQueries(int begin, int end, int k_map, int first_slot, int num_slots,
                    const std::byte* const* runs, const float* const* scales, bool fetches) {
    // A tile may have queries of both maps. The first query of each map sees the first slot, the
    // last query of each map the last.
    const bool has_both = begin < outputs_ && end > outputs_;
    const int first = seen_.first[has_both ? outputs_ : begin] - first_slot;
    const int seen = MaxInt(seen_.end[end - 1],
                            begin < outputs_ ? seen_.end[MinInt(end, outputs_) - 1] : 0);
    const int num_runs = (MinInt(num_slots, seen - first_slot) + kRun - 1) / kRun;
    const int64_t map_bytes = KBytes<Codec>(format_.KMapBegin(k_map));
    const std::byte* k[kRangeRuns + kStepRuns];
    const float* k_scales[kRangeRuns];
    for (int run = 0; run < num_runs + kStepRuns; ++run) k[run] = runs[run] + map_bytes;
    const TileFunctions<Codec>& functions = kTileFunctions<Codec>[end - begin];
    float* scores = ScoresOf(first_slot / kRange, begin) + first_slot % kRange;
    QueryRunTile<Codec> tile = {
        .q = QueriesOf(begin),
        .head_dim = format_.head_dim,
        .page_size = format_.page_size,
        .scale = call_.logit_quant.is_on() ? call_.scale : call_.scale * kLog2E};
    if constexpr (kHasScales<Codec>) {
      tile.q_scales = mine_.q_scales + begin;
      tile.q_sums = mine_.q_sums + begin;
      for (int run = 0; run < num_runs; ++run)
        k_scales[run] = scales[run] + format_.KScale(k_map, 0, 0);
    }
    for (int run = MaxInt(0, first) / kRun; run < num_runs;) {
      const bool several = run + RunsAtOnce(end - begin) <= num_runs;
      tile.k = k + run;
      tile.next = fetches ? k + kStepRuns + run : nullptr;
      tile.scores = scores + run * kRun;
      tile.k_scales = k_scales + run;
      (several ? functions.several_runs : functions.one_run)(tile);
      run += several ? RunsAtOnce(end - begin) : 1;
    }
  }

  // Stage 2: maximum, p = exp(score - maximum). For each range separately, with the sum of p; then
  // for all ranges, ascending. Quantised logits become exponents of 2 before.

  void QuantiseTiles(int range, int query) {
    const int end = seen_.End(range, query);
    float* logits = ScoresOf(range, query);
    for (int begin = seen_.First(range, query); begin < end;) {
      const int end_of_tile = MinInt(end, (begin / kLogitTileSlots + 1) * kLogitTileSlots);
      const float extent = ExtentOf(logits, begin, end_of_tile, call_.logit_quant.scale);
      QuantiseLogits(logits, begin, end_of_tile, extent, call_.logit_quant);
      begin = end_of_tile;
    }
  }
  void KeepExtent(int range, int query) {
    if (!seen_.SeesAny(range, query)) return;
    memory_.extent[StatisticOf(range, query)] = ExtentOf(
        ScoresOf(range, query), seen_.First(range, query), seen_.End(range, query),
        call_.logit_quant.scale);
  }
  void QuantiseRanges() {
    for (int query = 0; query < queries_; ++query) {
      float largest = memory_.extent[StatisticOf(seen_.FirstRange(query), query)];
      for (int range = seen_.FirstRange(query); range < seen_.EndRange(query); ++range) {
        const float extent = memory_.extent[StatisticOf(range, query)];
        largest = extent > largest ? extent : largest;
      }
      mine_.factor[query * sizes_.range_stride] = largest;
    }
    for (int range = task_.first_range; range < task_.end_range; ++range) {
      for (int query = 0; query < queries_; ++query) {
        if (!seen_.SeesAny(range, query)) continue;
        QuantiseLogits(ScoresOf(range, query), seen_.First(range, query), seen_.End(range, query),
                       mine_.factor[query * sizes_.range_stride], call_.logit_quant);
        Exponentials(range, query);
      }
    }
  }

  void Exponentials(int range, int query) {
    if (!seen_.SeesAny(range, query)) return;
    const RangeSoftmax softmax = SoftmaxOfRange(ScoresOf(range, query), seen_.First(range, query),
                                                seen_.End(range, query));
    memory_.max[StatisticOf(range, query)] = softmax.max;
    memory_.sum[StatisticOf(range, query)] = softmax.sum;
  }

  // mine_.factor turns a range's p into probabilities among all slots that the query sees.
  void JoinRanges(int query) {
    const int64_t at = query * sizes_.range_stride;
    FactorsOfRanges(memory_.max + at, memory_.sum + at, seen_.FirstRange(query) - min_range_,
                    seen_.EndRange(query) - min_range_, mine_.factor + at);
  }

  // Stage 3: output += p V. Once for both maps, with p1 / sum1 - lambda p2 / sum2 in the place of
  // p. Each range has its own sum; these are added in ascending order.

  // `is_kept`: each range's sums stay in their own memory.
  void AddRanges(bool is_kept) {
    RangeRuns<Codec> runs(kv_, task_);
    for (int range = task_.first_range; range < task_.end_range; ++range) {
      runs.LocateV(range, following_);
      for (int output = 0; output < outputs_; ++output) WeighRange(range, output, runs);
      AddRange(range, is_kept, runs);
    }
  }

  void AddRange(int range, bool is_kept, const RangeRuns<Codec>& runs) {
    float* sums = is_kept ? KeptSums(range, 0) : mine_.sums;
    // Few outputs read V as it is in memory. With codes they read a part at a time, whose sums then
    // stay in registers. Many outputs read a part of V that stays in the L1 cache.
    const bool many = outputs_ > kTile / 2;
    const bool is_in_order = format_.v_dim <= ColumnVectorsAtOnce(outputs_) * kLanes;
    const int block = many ? kStep : kHasScales<Codec> || is_in_order ? kRange : kRun;
    const int part = kHasScales<Codec> ? format_.head_dim : format_.v_dim;  // per scale
    const int columns = many ? 64 : part;
    const int num_slots = EndOf(range);
    ClearSumsThatBeginWithin(range, sums);
    for (int first = FirstOf(range) / block * block; first < num_slots; first += block) {
      const int end = MinInt(first + block, num_slots);
      for (int column = 0, end_column = 0; column < format_.v_dim; column = end_column) {
        end_column = MinInt(column + columns, (column / part + 1) * part);
        ValueTile<Codec> tile = {.v = runs.numbers(),
                                 .next = runs.numbers() + kStepRuns,
                                 .first_column = column,
                                 .end_column = end_column,
                                 .v_dim = format_.v_dim,
                                 .out_stride = sizes_.out_stride};
        for (int begin = 0; begin < outputs_; begin += kTile) {
          AddTile(tile, range, first, end, begin, MinInt(begin + kTile, outputs_), sums);
          tile.next = nullptr;  // the first tile prefetches for all
        }
      }
    }
    if constexpr (kHasScales<Codec>) {
      for (int output = 0; output < outputs_; ++output) {
        if (seen_.SeesAny(range, output)) ScaleSums(output, sums + output * sizes_.out_stride);
      }
    }
    if (is_kept) return;
    for (int output = 0; output < outputs_; ++output) {
      if (seen_.SeesAny(range, output))
        AddSums(range, Sums(output), output, KeptSums(min_range_, output));
    }
  }
  // These chains do not begin with the range's slot 0, so ValueTile does not clear them.
  void ClearSumsThatBeginWithin(int range, float* sums) {
    for (int output = 0; output < outputs_; ++output) {
      if (seen_.First(range, output) == 0) continue;
      __builtin_memset(sums + output * sizes_.out_stride, 0,
                       static_cast<size_t>(sizes_.out_stride) * sizeof(float));
    }
  }

  // The weights of one output: p1 / sum1 - lambda p2 / sum2. Zero for the other slots of their
  // vectors, which the output does not see.
  void WeighRange(int range, int output, const RangeRuns<Codec>& runs) {
    if (!seen_.SeesAny(range, output)) return;
    const int begin = seen_.First(range, output) / kLanes * kLanes;
    const int seen = seen_.End(range, output);
    const float* p1 = ScoresOf(range, output);
    const F32 factor1 = Set1(mine_.factor[StatisticOf(range, output)]);
    Operand* weights = mine_.weights + output * kRangeOperands<Codec>;
    alignas(64) float unscaled[kRange];  // with int8 codes
    const auto store = [&](int i, F32 weight) {
      if constexpr (kHasScales<Codec>) {
        Store(unscaled + i, weight);
      } else {
        Loads::StoreWeights(weights + i / Loads::kNumbers, weight);
      }
    };
    if (heads2_ == 0) {
      for (int i = begin; i < seen; i += kLanes) store(i, Mul(Load(p1 + i), factor1));
      if constexpr (kHasScales<Codec>) ScaleWeights(range, output, unscaled, runs, weights);
      return;
    }
    const int token = output / heads1_;
    const int head = output % heads1_;
    const int query2 = outputs_ + token * heads2_ + head / (heads1_ / heads2_);
    const float* p2 = ScoresOf(range, query2);
    const F32 factor2 = Set1(mine_.factor[StatisticOf(range, query2)]);
    const int64_t row = task_.first_row + token;
    const float lambda =
        call_.lambda_rows == nullptr
            ? call_.lambda
            : call_.lambda_rows[row * call_.num_q1_heads + task_.group * heads1_ + head];
    const F32 minus_lambda = Set1(-lambda);
    for (int i = begin; i < seen; i += kLanes) {
      const F32 map2 = Mul(Load(p2 + i), factor2);
      store(i, Fma(minus_lambda, map2, Mul(Load(p1 + i), factor1)));
    }
    if constexpr (kHasScales<Codec>) ScaleWeights(range, output, unscaled, runs, weights);
  }
  // A weight times the scale of its slot, for each part of V that has a scale.
  void ScaleWeights(int range, int output, const float* unscaled, const RangeRuns<Codec>& runs,
                    Operand* weights) {
    for (int part = 0; part * format_.head_dim < format_.v_dim; ++part) {
      const int of_part = format_.VScale(part * format_.head_dim, 0);
      const auto scales_of = [&](int i) { return runs.scales()[i / kRun] + of_part + i % kRun; };
      int16_t* codes = reinterpret_cast<int16_t*>(weights) + part * kRange;
      mine_.code_weights[2 * output + part] = QuantiseScaled<kVIs4Bits<Codec>>(
          unscaled, seen_.First(range, output), seen_.End(range, output), scales_of, codes);
    }
  }
  // Converts a range's integer sums to floats.
  void ScaleSums(int output, float* sums) {
    for (int part = 0; part * format_.head_dim < format_.v_dim; ++part) {
      SumsToFloat<kVIs4Bits<Codec>>(sums + part * format_.head_dim, format_.head_dim,
                                    mine_.code_weights[2 * output + part]);
    }
  }

  // Adds slots [first, end) of the range, as far as each output of [begin, end_output) sees them.
  void AddTile(ValueTile<Codec> tile, int range, int first, int end, int begin, int end_output,
               float* sums) {
    const SeenPacks<Codec> packs = {seen_, range, first, end, begin, end_output};
    const auto point_at = [&](int output) {
      tile.weights = mine_.weights + output * kRangeOperands<Codec>;
      tile.sums = sums + output * sizes_.out_stride;
      if constexpr (kHasScales<Codec>)
        tile.weights += tile.first_column / format_.head_dim * (kRange / 2);
    };
    if constexpr (packs.kHasLoneSlots) {
      packs.ForEachLoneFirst([&](int output, int count, int slot) {
        point_at(output);
        AddLoneSlot(tile, slot, count);
      });
    }
    packs.ForEachRun([&](int output, int count, int first_slot, int end_slot) {
      point_at(output);
      tile.first = first_slot;
      tile.end = end_slot;
      kTileFunctions<Codec>[count].values(tile);
    });
    if constexpr (packs.kHasLoneSlots) {
      packs.ForEachLoneLast([&](int output, int count, int slot) {
        point_at(output);
        AddLoneSlot(tile, slot, count);
      });
    }
  }

  void AddSums(int range, const float* from, int output, float* to) {
    const bool is_first = range == seen_.FirstRange(output);
    for (int64_t i = 0; i < sizes_.out_stride; i += kLanes)
      Store(to + i, Add(is_first ? Zero() : Load(to + i), Load(from + i)));
  }

  void AddKept(int output) {
    for (int range = seen_.FirstRange(output); range < seen_.EndRange(output); ++range)
      AddSums(range, KeptSums(range, output), output, Sums(output));
  }

  // Stage 4: sub-norm, scale. Applied to an output.
  void Finish(int output, const float* sums) {
    const int token = output / heads1_;
    const int head = output % heads1_;
    float* to = call_.out + (task_.first_row + token) * call_.out_width +
                static_cast<int64_t>(task_.group * heads1_ + head) * format_.v_dim;
    float factor = call_.out_scale;
    if (call_.has_sub_norm) {
      F32 squares = Zero();
      for (int d = 0; d < format_.v_dim; d += kLanes) {
        const F32 o = SelectFirst(format_.v_dim - d, Load(sums + d), Zero());
        squares = Fma(o, o, squares);
      }
      const float mean = ReduceAdd(squares) / static_cast<float>(format_.v_dim);
      factor = factor / __builtin_sqrtf(mean + call_.sub_norm_eps);
    }
    for (int d = 0; d < format_.v_dim; d += kLanes) {
      const int n = MinInt(kLanes, format_.v_dim - d);
      F32 o = Mul(Load(sums + d), Set1(factor));
      if (call_.sub_norm_weight != nullptr) o = Mul(o, LoadFirst(call_.sub_norm_weight + d, n));
      StoreFirst(to + d, n, o);
    }
  }

  const AttentionCall& call_;
  const AttentionTask& task_;
  const AttentionTask* const following_;
  const PagedKv kv_;
  const KvFormat& format_;
  const AttentionSizes sizes_;
  const int heads1_;  // query heads of the group, per map
  const int heads2_;
  const int min_range_;  // of the task
  const int outputs_;
  const int queries_;
  const TaskMemory memory_;
  const WorkerMemory<Operand> mine_;
  const SeenSlots seen_;
};

// An AttentionFunction for pages of the codec.
template <typename Codec>
void RunTask(const AttentionCall& call, const AttentionTask& task, const AttentionTask* following,
             float* workspace) {
  Worker<Codec>(call, task, following, workspace).Run();
}

}  // namespace
}  // namespace diffserve::DS_ISA
