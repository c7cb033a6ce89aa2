// A task is a few tokens of one sequence and one group; each (token, query head) of either map is a
// query. The slots of a sequence are cut into ranges by absolute position. For each query:
//
// Stage 1: scores of the slots. All that it sees, as exponents of 2, kept in memory. If they are
// to be quantised they are logits until then, and where that takes all of a query's, it and what
// follows wait for them.
// Stage 2: maximum, p = exp(score - maximum). Of each range by itself, with the sum of p; then of
// all ranges, ascending.
// Stage 3: output += p V. Once for both maps, with p1 / sum1 - lambda p2 / sum2 in the place of p.
// Each range has a sum of its own; these are added, ascending.
// Stage 4: sub-norm, scale. Of the outputs.
//
// A query stops at its own position, so no other slot enters it, not even times zero. Whether one
// worker takes all ranges or several share them changes no bit.
#include "kernels/attention/diff_attention_kernel.h"
#include "kernels/attention/diff_attention_tiles.h"
#include "kernels/attention/kv_loads.h"
#include "kernels/base/simd.h"

namespace diffserve::DS_ISA {
namespace {

constexpr float kInfinity = __builtin_inff();
constexpr float kLog2E = 1.44269504f;
constexpr int kStepRuns = kStep / kRun;
constexpr int kRangeRuns = kRange / kRun;

// Queries are numbered map 1 first, within a map by token and then head; outputs as the queries of
// map 1.
template <typename Codec>
class Worker {
 public:
  using Loads = KvLoads<Codec>;
  using Operand = OperandOf<Codec>;

  Worker(const AttentionCall& call, const AttentionTask& task, float* workspace)
      : call_(call),
        task_(task),
        kv_{call.kv.base, call.kv.format.As<Codec, KvArrangement::kSlotLanes>()},
        format_(kv_.format),
        sizes_(AttentionSizes::Of(call, task)),
        heads1_(call.num_q1_heads / format_.num_groups),
        heads2_(call.num_q2_heads / format_.num_groups),
        outputs_(task.num_tokens * heads1_),
        queries_(task.num_tokens * (heads1_ + heads2_)) {
    scores_ = task.memory;
    max_ = scores_ + sizes_.ScoresFloats();
    sum_ = max_ + sizes_.StatisticFloats();
    extent_ = sum_ + sizes_.StatisticFloats();
    range_sums_ = max_ + sizes_.statistics * sizes_.StatisticFloats();
    q_ = reinterpret_cast<Operand*>(workspace);
    weights_ = reinterpret_cast<Operand*>(workspace + sizes_.QFloats());
    factor_ = workspace + sizes_.QFloats() + sizes_.WeightFloats();
    sums_ = factor_ + sizes_.StatisticFloats();
    seen_ = reinterpret_cast<int*>(sums_ + sizes_.SumFloats());
    for (int query = 0; query < queries_; ++query)
      seen_[query] = task_.position + TokenOf(query) + 1;
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
      for (int range = task_.first_range; range < task_.end_range; ++range) AddRange(range, !all);
    }
    if (all || task_.pass == AttentionTask::Pass::kFinish) {
      for (int output = 0; output < outputs_; ++output) {
        if (!all) AddKept(output);
        Finish(output, (all ? range_sums_ : sums_) + output * sizes_.out_stride);
      }
    }
  }

 private:
  int TokenOf(int query) const {
    return query < outputs_ ? query / heads1_ : (query - outputs_) / heads2_;
  }
  // How many of a range's slots the query sees; negative or 0 for none.
  int SeenOf(int range, int query) const { return Least(kRange, seen_[query] - range * kRange); }
  // The most that a query of the task sees.
  int SlotsOf(int range) const { return Least(kRange, task_.num_slots() - range * kRange); }
  float* ScoresOf(int range, int query) const {
    return scores_ + (static_cast<int64_t>(range) * queries_ + query) * kRange;
  }

  // Calls body(begin, end, k_map) for runs of at most kTile queries that read the same K.
  template <typename Body>
  void ForEachTile(Body body) {
    const int split = format_.k_maps == 2 ? outputs_ : queries_;
    for (int begin = 0; begin < split; begin += kTile) body(begin, Least(begin + kTile, split), 0);
    for (int begin = split; begin < queries_; begin += kTile)
      body(begin, Least(begin + kTile, queries_), 1);
  }

  Operand* QueriesOf(int begin) const {
    return q_ + static_cast<int64_t>(begin) * (format_.head_dim / Loads::kNumbers);
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
      for (int d = 0; d < format_.head_dim; d += Loads::kNumbers)
        to[d / Loads::kNumbers * (end - begin) + query - begin] = Loads::OperandOf(from + d);
    }
  }

  // The number'th number of each run's first slot, of `count` runs from `first_slot` on.
  template <typename NumberOf>
  void Locate(int first_slot, int count, const std::byte** runs, NumberOf number_of) const {
    const int num_slots = task_.num_slots();
    for (int run = 0; run < count && first_slot + run * kRun < num_slots; ++run) {
      const int slot = first_slot + run * kRun;
      const std::byte* page = kv_.Page(task_.pages[slot / format_.page_size], task_.group);
      runs[run] = page + BytesOf<Codec>(number_of(slot % format_.page_size));
    }
  }
  void LocateK(int first_slot, const std::byte** runs) const {
    Locate(first_slot, kStepRuns, runs, [this](int slot) { return format_.KOffset(0, 0, slot); });
  }

  // ---- Stages 1 and 2: the slots of the task's ranges become p.
  void ScoreRanges() {
    const int end = Least(task_.end_range * kRange, task_.num_slots());
    const std::byte* runs[2][kStepRuns];
    LocateK(task_.first_range * kRange, runs[0]);
    for (int slot = task_.first_range * kRange, now = 0; slot < end; slot += kStep, now ^= 1) {
      if (slot + kStep < end) LocateK(slot + kStep, runs[now ^ 1]);
      const bool fetch = slot + 2 * kStep <= end;  // only a full step has all its runs
      ScoreStep(slot, runs[now], fetch ? runs[now ^ 1] : nullptr);
      const int range = slot / kRange;
      if ((slot + kStep) % kRange != 0 && slot + kStep < end) continue;
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

  // `next`: the runs to fetch meanwhile, or nullptr.
  void ScoreStep(int first_slot, const std::byte* const* runs, const std::byte* const* next) {
    // The first tile of each map fetches ahead for all.
    ForEachTile([&](int begin, int end, int k_map) {
      const bool ahead = begin == 0 || (k_map == 1 && begin == outputs_);
      ScoreTile(begin, end, k_map, first_slot, runs, ahead ? next : nullptr);
    });
  }

  void ScoreTile(int begin, int end, int k_map, int first_slot, const std::byte* const* runs,
                 const std::byte* const* next) {
    // A tile may have queries of both maps; the last of either has seen the most.
    const int seen = Most(seen_[end - 1], begin < outputs_ ? seen_[Least(end, outputs_) - 1] : 0);
    const int num_runs = (Least(kStep, seen - first_slot) + kRun - 1) / kRun;
    const int64_t map_bytes = BytesOf<Codec>(format_.KMapBegin(k_map));
    const std::byte* k[kStepRuns];
    const std::byte* k_next[kStepRuns];
    for (int run = 0; run < num_runs; ++run) {
      k[run] = runs[run] + map_bytes;
      if (next != nullptr) k_next[run] = next[run] + map_bytes;
    }
    const TileFunctions<Codec>& functions = kTileFunctions<Codec>[end - begin];
    float* scores = ScoresOf(first_slot / kRange, begin) + first_slot % kRange;
    const float scale = call_.logit_quant.is_on() ? call_.scale : call_.scale * kLog2E;
    for (int run = 0; run < num_runs;) {
      const bool several = run + RunsAtOnce(end - begin) <= num_runs;
      (several ? functions.several_runs : functions.one_run)(
          QueriesOf(begin), k + run, next != nullptr ? k_next + run : nullptr, format_.head_dim,
          format_.page_size, scale, scores + run * kRun);
      run += several ? RunsAtOnce(end - begin) : 1;
    }
  }

  // ---- Quantised logits, which become exponents of 2.

  // What quantising needs of some logits: the largest magnitude, or for kAnchored the largest. It may
  // miss a NaN, which stays one all the same.
  float ExtentOf(const float* logits, int count) const {
    const bool is_anchored = call_.logit_quant.scale == LogitScale::kAnchored;
    F32 largest = Set1(is_anchored ? -kInfinity : 0.0f);
    for (int i = 0; i < count; i += kLanes) {
      const F32 logit = Load(logits + i);
      const F32 extent = is_anchored ? logit : Max(logit, Sub(Zero(), logit));
      largest = Max(largest, SelectFirst(count - i, extent, largest));
    }
    return ReduceMax(largest);
  }
  void QuantiseTiles(int range, int query) {
    const int seen = SeenOf(range, query);
    float* logits = ScoresOf(range, query);
    for (int begin = 0; begin < seen; begin += kLogitTileSlots) {
      const int count = Least(kLogitTileSlots, seen - begin);
      Quantise(logits + begin, count, ExtentOf(logits + begin, count));
    }
  }
  void KeepExtent(int range, int query) {
    const int seen = SeenOf(range, query);
    if (seen > 0)
      extent_[query * sizes_.range_stride + range] = ExtentOf(ScoresOf(range, query), seen);
  }
  void QuantiseRanges() {
    for (int query = 0; query < queries_; ++query) {
      const float* extents = extent_ + query * sizes_.range_stride;
      float largest = extents[0];
      for (int range = 1; range * kRange < seen_[query]; ++range)
        largest = extents[range] > largest ? extents[range] : largest;
      factor_[query * sizes_.range_stride] = largest;
    }
    for (int range = task_.first_range; range < task_.end_range; ++range) {
      for (int query = 0; query < queries_; ++query) {
        const int seen = SeenOf(range, query);
        if (seen <= 0) continue;
        Quantise(ScoresOf(range, query), seen, factor_[query * sizes_.range_stride]);
        Exponentials(range, query);
      }
    }
  }
  // May change what lies behind `count` up to a vector's end.
  void Quantise(float* logits, int count, float extent) {
    const float levels = static_cast<float>(call_.logit_quant.levels());
    if (call_.logit_quant.scale == LogitScale::kAnchored) {
      // The largest of all becomes 0, which the softmax does not notice.
      const F32 step = Set1(-kLog2E * static_cast<float>(kLogitReach) / levels);
      const F32 per_reach = Set1(1.0f / static_cast<float>(kLogitReach));
      for (int i = 0; i < count; i += kLanes) {
        const F32 distance = Min(Set1(static_cast<float>(kLogitReach)),
                                 Sub(Set1(extent), Load(logits + i)));
        const F32 code = RoundToNearest(Mul(Mul(distance, Set1(levels)), per_reach));
        Store(logits + i, Mul(code, step));
      }
      return;
    }
    if (extent == 0) return;  // all are 0
    const F32 step = Set1(kLog2E * (extent / levels));
    for (int i = 0; i < count; i += kLanes) {
      const F32 code = RoundToNearest(Div(Mul(Load(logits + i), Set1(levels)), Set1(extent)));
      Store(logits + i, Mul(code, step));
    }
  }

  // Scores become p = 2^(score - maximum of the range). Slots that the query does not see may hold
  // anything, and count as -infinity.
  void Exponentials(int range, int query) {
    const int seen = SeenOf(range, query);
    if (seen <= 0) return;
    float* p = ScoresOf(range, query);
    const int whole = seen / kLanes * kLanes;
    F32 largest = Set1(-kInfinity);
    F32 largest_odd = largest;
    int vector = 0;
    for (; vector + 2 * kLanes <= whole; vector += 2 * kLanes) {
      largest = Max(largest, Load(p + vector));
      largest_odd = Max(largest_odd, Load(p + vector + kLanes));
    }
    if (vector < whole) largest = Max(largest, Load(p + vector));
    largest = Max(largest, largest_odd);
    if (whole < seen) {
      Store(p + whole, SelectFirst(seen - whole, Load(p + whole), Set1(-kInfinity)));
      largest = Max(largest, Load(p + whole));
    }
    const float max = ReduceMax(largest);
    const F32 subtracted = Set1(max == -kInfinity ? 0.0f : max);
    F32 sum = Zero();
    for (int i = 0; i < seen; i += kLanes) {
      const F32 value = Exp2OfNegative(Sub(Load(p + i), subtracted));
      Store(p + i, value);
      sum = Add(sum, value);
    }
    max_[query * sizes_.range_stride + range] = max;
    sum_[query * sizes_.range_stride + range] = ReduceAdd(sum);
  }

  // factor_: by what a range's p become probabilities among all slots that the query sees.
  void JoinRanges(int query) {
    const int ranges = (seen_[query] + kRange - 1) / kRange;
    const float* max_of = max_ + query * sizes_.range_stride;
    const float* sum_of = sum_ + query * sizes_.range_stride;
    float* factor = factor_ + query * sizes_.range_stride;
    float max = -kInfinity;
    for (int range = 0; range < ranges; ++range) max = max_of[range] > max ? max_of[range] : max;
    for (int range = 0; range < ranges; range += kLanes)
      Store(factor + range, Exp2OfNegative(Sub(Load(max_of + range), Set1(max))));
    float sum = 0;
    for (int range = 0; range < ranges; ++range) sum += sum_of[range] * factor[range];
    const F32 per_sum = Set1(1.0f / sum);
    for (int range = 0; range < ranges; range += kLanes)
      Store(factor + range, Mul(Load(factor + range), per_sum));
  }

  // ---- Stage 3. `is_kept`: the range's sums stay in memory of their own.
  void AddRange(int range, bool is_kept) {
    for (int output = 0; output < outputs_; ++output) WeighRange(range, output);
    const std::byte* runs[kRangeRuns + kStepRuns];  // and some of the next range, to fetch ahead
    Locate(range * kRange, kRangeRuns + kStepRuns, runs,
           [this](int slot) { return format_.VOffset(0, slot); });
    float* sums = is_kept ? range_sums_ + range * sizes_.SumFloats() : sums_;
    // Few outputs read V as it lies in memory. Many read a part of it that stays in the L1 cache.
    const bool many = outputs_ > kTile / 2;
    const int block = many ? kStep : kRun;
    const int columns = many ? 64 : format_.v_dim;
    const int num_slots = SlotsOf(range);
    for (int first = 0; first < num_slots; first += block) {
      const int end = Least(first + block, num_slots);
      const bool fetch = range * kRange + end + kStep <= task_.num_slots();
      for (int column = 0; column < format_.v_dim; column += columns) {
        const int end_column = Least(column + columns, format_.v_dim);
        ValueTile<Codec> tile = {.v = runs,
                                 .next = fetch ? runs + kStepRuns : nullptr,
                                 .first_column = column,
                                 .end_column = end_column,
                                 .v_dim = format_.v_dim,
                                 .out_stride = sizes_.out_stride};
        for (int begin = 0; begin < outputs_; begin += kTile) {
          AddTile(tile, range, first, end, begin, Least(begin + kTile, outputs_), sums);
          tile.next = nullptr;  // the first tile fetches ahead for all
        }
      }
    }
    if (is_kept) return;
    for (int output = 0; output < outputs_; ++output) {
      if (SeenOf(range, output) > 0) AddSums(sums_, range_sums_, output, range == 0);
    }
  }

  // The weights of one output: p1 / sum1 - lambda p2 / sum2. Behind the last slot that it sees are
  // zeros up to a vector's end.
  void WeighRange(int range, int output) {
    const int seen = SeenOf(range, output);
    const float* p1 = ScoresOf(range, output);
    const F32 factor1 = Set1(factor_[output * sizes_.range_stride + range]);
    Operand* weights = weights_ + output * kRangeOperands<Codec>;
    if (heads2_ == 0) {
      for (int i = 0; i < seen; i += kLanes)
        Loads::StoreWeights(weights + i / Loads::kNumbers, Mul(Load(p1 + i), factor1));
      return;
    }
    const int token = output / heads1_;
    const int head = output % heads1_;
    const int query2 = outputs_ + token * heads2_ + head / (heads1_ / heads2_);
    const float* p2 = ScoresOf(range, query2);
    const F32 factor2 = Set1(factor_[query2 * sizes_.range_stride + range]);
    const int64_t row = task_.first_row + token;
    const float lambda =
        call_.lambda_rows == nullptr
            ? call_.lambda
            : call_.lambda_rows[row * call_.num_q1_heads + task_.group * heads1_ + head];
    const F32 minus_lambda = Set1(-lambda);
    for (int i = 0; i < seen; i += kLanes) {
      const F32 map2 = Mul(Load(p2 + i), factor2);
      Loads::StoreWeights(weights + i / Loads::kNumbers,
                          Fma(minus_lambda, map2, Mul(Load(p1 + i), factor1)));
    }
  }

  // Slots [first, end) of the range, as far as each output sees: jointly what all of those left
  // see. Outputs are sorted by how much they see.
  void AddTile(ValueTile<Codec> tile, int range, int first, int end, int begin, int end_output,
               float* sums) {
    constexpr int kPack = Codec::Description().v_pack;
    tile.first = first;
    for (int output = begin; output < end_output;) {
      const int seen = Least(end, SeenOf(range, output));
      int next = output + 1;
      while (next < end_output && Least(end, SeenOf(range, next)) == seen) ++next;
      if (seen > first) {
        tile.weights = weights_ + output * kRangeOperands<Codec>;
        tile.sums = sums + output * sizes_.out_stride;
        tile.end = seen / kPack * kPack;
        if (tile.end > tile.first) kTileFunctions<Codec>[end_output - output].values(tile);
        if constexpr (kPack > 1) {
          if (tile.end < seen) AddLastSlot(tile, next - output);
        }
        tile.first = tile.end;
      }
      output = next;
    }
  }

  void AddSums(const float* from, float* to, int output, bool is_first) {
    from += output * sizes_.out_stride;
    to += output * sizes_.out_stride;
    for (int64_t i = 0; i < sizes_.out_stride; i += kLanes)
      Store(to + i, Add(is_first ? Zero() : Load(to + i), Load(from + i)));
  }

  void AddKept(int output) {
    for (int range = 0; range * kRange < seen_[output]; ++range)
      AddSums(range_sums_ + range * sizes_.SumFloats(), sums_, output, range == 0);
  }

  // ---- Stage 4.
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
      const int n = Least(kLanes, format_.v_dim - d);
      F32 o = Mul(Load(sums + d), Set1(factor));
      if (call_.sub_norm_weight != nullptr) o = Mul(o, LoadFirst(call_.sub_norm_weight + d, n));
      StoreFirst(to + d, n, o);
    }
  }

  const AttentionCall& call_;
  const AttentionTask& task_;
  const PagedKv kv_;
  const KvFormat& format_;
  const AttentionSizes sizes_;
  const int heads1_;  // query heads of the group, by map
  const int heads2_;
  const int outputs_;
  const int queries_;
  // The task's.
  float* scores_;      // [ranges][queries][kRange], and then p
  float* max_;         // [queries][range_stride]
  float* sum_;         // [queries][range_stride], of p
  float* extent_;      // [queries][range_stride], if logits are quantised by rows
  float* range_sums_;  // [1 or ranges][outputs][out_stride]
  // The worker's.
  Operand* q_;        // tiles of [head_dim][queries of the tile]
  Operand* weights_;  // [outputs][kRange]
  float* factor_;     // [queries][range_stride]
  float* sums_;       // [outputs][out_stride]
  int* seen_;         // [queries], how many slots each sees
};

template <typename Codec>
void RunTask(const AttentionCall& call, const AttentionTask& task, float* workspace) {
  Worker<Codec>(call, task, workspace).Run();
}

struct Instance {
  DType dtype;
  void (*run)(const AttentionCall&, const AttentionTask&, float*);
};
template <typename Codec>
constexpr Instance kInstanceOf = {Codec::Description().dtype, RunTask<Codec>};
constexpr Instance kInstances[] = {kInstanceOf<Float32Codec>, kInstanceOf<BFloat16Codec>,
                                   kInstanceOf<Float16Codec>};

}  // namespace

void Attention(const AttentionCall& call, const AttentionTask& task, float* workspace);
void Attention(const AttentionCall& call, const AttentionTask& task, float* workspace) {
  for (const Instance& instance : kInstances) {
    if (instance.dtype == call.kv.format.codec.dtype) return instance.run(call, task, workspace);
  }
}

}  // namespace diffserve::DS_ISA
