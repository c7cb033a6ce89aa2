// A task is a few tokens of one sequence and one group; each (token, query head) of either map is a
// query. Keys are taken in steps of 64 slots from slot 0 on, by absolute position. For each query
// and step:
//
// Stage 1: scores of the slots. A chain over head_dim ascending for each slot; lanes are slots.
// Stage 2: running maximum, p = exp(score - maximum). Sum and output are rescaled if it rose.
// Stage 3: output += p V. Slots ascending.
// Stage 4: normalise, subtract lambda times map 2, sub-norm, scale. After the last step.
//
// Queries are tiled in registers, so a K or V element is loaded once for several of them. Tiling
// changes no bit: each score and each output element keeps its chain, and a query stops at its own
// position, so no other slot enters it even times zero.
#include "kernels/attention/diff_attention_kernel.h"
#include "kernels/attention/kv_loads.h"
#include "kernels/base/simd.h"

namespace diffserve::DS_ISA {
namespace {

constexpr int kStep = kAttentionStepSlots;
constexpr int kRun = 16;                    // slots handled at once; never across a page's end
constexpr int kRunVectors = kRun / kLanes;  // 2 or 1
constexpr int kTile = kLanes == 8 ? 6 : 8;  // queries in a register tile
constexpr int kIntoL2 = 2;                  // prefetch locality: L1 is full of the present step
constexpr float kInfinity = __builtin_inff();

constexpr int Least(int a, int b) { return a < b ? a : b; }
constexpr int Most(int a, int b) { return a > b ? a : b; }

// Bytes of so many numbers.
template <typename Codec>
constexpr int64_t BytesOf(int64_t numbers) {
  return numbers * Codec::Description().bits / 8;
}

// ---- Stage 1: R queries against NS runs of kRun slots. q is [head_dim][R]; `k[n]` is dim 0 of run
// n's first slot. The same places of `next` are fetched ahead, if not nullptr.
template <typename Codec, int R, int NS>
void Scores(const float* q, const std::byte* const* k, const std::byte* const* next, int head_dim,
            int page_size, float scale, float* scores) {
  constexpr int kVectors = NS * kRunVectors;
  F32 acc[R][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) acc[r][v] = Zero();
  }
  const auto add_dim = [&](const F32(&slots)[kVectors], const float* q_dim)
                           __attribute__((always_inline)) {
#pragma GCC unroll 8
                             for (int r = 0; r < R; ++r) {
                               const F32 value = Set1(q_dim[r]);
#pragma GCC unroll 8
                               for (int v = 0; v < kVectors; ++v)
                                 acc[r][v] = Fma(value, slots[v], acc[r][v]);
                             }
                           };
  constexpr int kPack = Codec::Description().k_pack;
  F32 slots[kVectors];
  int64_t offset = 0;
  for (int d = 0; d < head_dim; d += kPack, offset += BytesOf<Codec>(kPack * page_size)) {
#pragma GCC unroll 4
    for (int n = 0; n < NS; ++n) {
      if (next != nullptr) __builtin_prefetch(next[n] + offset, 0, kIntoL2);
    }
#pragma GCC unroll 8
    for (int dim = 0; dim < kPack; ++dim, q += R) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        constexpr int64_t kVectorBytes = BytesOf<Codec>(kPack * kLanes);
        slots[v] = KvLoads<Codec>::SlotsOfK(
            k[v / kRunVectors] + offset + v % kRunVectors * kVectorBytes, dim);
      }
      add_dim(slots, q);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      Store(scores + r * kStep + v * kLanes, Mul(acc[r][v], Set1(scale)));
  }
}

// Runs that R queries take at once: enough chains to hide the latency, few enough for the
// registers.
constexpr int RunsAtOnce(int r) { return r == 1 ? 4 : r <= 3 ? 2 : 1; }

// ---- Stage 3: R queries, C vectors of columns, `count` slots: out[r][c] += p[r][slot] *
// v[slot][c]. The last vector of a ragged v_dim is loaded with `lanes` < kLanes. The same places of
// `next` are fetched ahead, if it is not nullptr.
template <typename Codec, int R, int C>
void AddValues(const float* p, const std::byte* v, const std::byte* next, int count, int v_dim,
               float* out, int64_t out_stride, int lanes) {
  F32 acc[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[r][c] = Load(out + r * out_stride + c * kLanes);
  }
  for (int slot = 0; slot < count; ++slot) {
    const int64_t offset = BytesOf<Codec>(static_cast<int64_t>(slot) * v_dim);
    constexpr int64_t kVectorBytes = BytesOf<Codec>(kLanes);
    if (next != nullptr) {
#pragma GCC unroll 4
      for (int byte = 0; byte < C * kVectorBytes; byte += 64)
        __builtin_prefetch(next + offset + byte, 0, kIntoL2);
    }
    F32 row[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      const std::byte* from = v + offset + c * kVectorBytes;
      row[c] = C == 1 ? KvLoads<Codec>::ColumnsOfV(from, lanes) : KvLoads<Codec>::ColumnsOfV(from);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F32 weight = Set1(p[r * kStep + slot]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[r][c] = Fma(weight, row[c], acc[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) Store(out + r * out_stride + c * kLanes, acc[r][c]);
  }
}

// All columns of R queries.
template <typename Codec, int R>
void AddAllValues(const float* p, const std::byte* v, const std::byte* next, int count, int v_dim,
                  float* out, int64_t out_stride) {
  constexpr int kColumnVectors = R <= 2 ? 4 : 2;  // enough chains to hide the latency, few enough
                                                  // for the registers
  int column = 0;
  for (; column + kColumnVectors * kLanes <= v_dim; column += kColumnVectors * kLanes) {
    const int64_t offset = BytesOf<Codec>(column);
    AddValues<Codec, R, kColumnVectors>(p, v + offset, next == nullptr ? nullptr : next + offset,
                                        count, v_dim, out + column, out_stride, kLanes);
  }
  for (; column < v_dim; column += kLanes) {
    const int64_t offset = BytesOf<Codec>(column);
    AddValues<Codec, R, 1>(p, v + offset, next == nullptr ? nullptr : next + offset, count, v_dim,
                           out + column, out_stride, Least(kLanes, v_dim - column));
  }
}

using ScoresFunction = void (*)(const float*, const std::byte* const*, const std::byte* const*, int,
                                int, float, float*);
using ValuesFunction = void (*)(const float*, const std::byte*, const std::byte*, int, int, float*,
                                int64_t);

struct TileFunctions {
  ScoresFunction one_run;
  ScoresFunction several_runs;  // RunsAtOnce
  ValuesFunction values;
};
template <typename Codec, int R>
constexpr TileFunctions kFunctions = {Scores<Codec, R, 1>, Scores<Codec, R, RunsAtOnce(R)>,
                                      AddAllValues<Codec, R>};
// By number of queries.
template <typename Codec>
constexpr TileFunctions kTileFunctions[] = {
    {},
    kFunctions<Codec, 1>,
    kFunctions<Codec, 2>,
    kFunctions<Codec, 3>,
    kFunctions<Codec, 4>,
    kFunctions<Codec, 5>,
    kFunctions<Codec, 6>,
#if defined(__AVX512F__) || defined(DS_PAIRED)
    kFunctions<Codec, 7>,
    kFunctions<Codec, 8>,
#endif
};
static_assert(sizeof(kTileFunctions<Float32Codec>) / sizeof(TileFunctions) == kTile + 1);

// One task at work. Queries are numbered map 1 first, within a map by token and then head.
template <typename Codec>
class Worker {
 public:
  Worker(const AttentionCall& call, const AttentionTask& task, float* workspace)
      : call_(call),
        task_(task),
        kv_{call.kv.base, call.kv.format.As<Codec, KvArrangement::kSlotLanes>()},
        format_(kv_.format),
        heads1_(call.num_q1_heads / format_.num_groups),
        heads2_(call.num_q2_heads / format_.num_groups),
        queries1_(task.num_tokens * heads1_),
        queries_(task.num_tokens * (heads1_ + heads2_)),
        out_stride_((format_.v_dim + 15) / 16 * 16) {
    workspace += (64 - reinterpret_cast<uintptr_t>(workspace) % 64) % 64 / sizeof(float);
    p_ = workspace;
    out_ = p_ + static_cast<int64_t>(queries_) * kStep;
    sum_ = out_ + queries_ * out_stride_;
    q_ = sum_ + static_cast<int64_t>(queries_) * 16;
    max_ = q_ + static_cast<int64_t>(queries_) * format_.head_dim;
    visible_ = reinterpret_cast<int*>(max_ + queries_);
  }

  void Run() {
    for (int64_t i = 0; i < queries_ * out_stride_; ++i) out_[i] = 0;
    for (int64_t i = 0; i < static_cast<int64_t>(queries_) * 16; ++i) sum_[i] = 0;
    for (int query = 0; query < queries_; ++query) max_[query] = -kInfinity;
    ForEachTile([this](int begin, int end, int) { PackQueries(begin, end); });
    const int num_slots = task_.position + task_.num_tokens;
    Runs runs[2];
    Locate(0, runs[0]);
    for (int step = 0, now = 0; step < num_slots; step += kStep, now ^= 1) {
      if (step + kStep < num_slots) Locate(step + kStep, runs[now ^ 1]);
      const bool fetch = step + 2 * kStep <= num_slots;  // only a full step has all its runs
      Step(step, runs[now], fetch ? &runs[now ^ 1] : nullptr);
    }
    for (int token = 0; token < task_.num_tokens; ++token) {
      for (int head = 0; head < heads1_; ++head) Finish(token, head);
    }
  }

 private:
  void SetVisible(int first_slot) {
    for (int token = 0, query1 = 0, query2 = queries1_; token < task_.num_tokens; ++token) {
      const int visible = Most(0, Least(kStep, task_.position + token + 1 - first_slot));
      for (int head = 0; head < heads1_; ++head) visible_[query1++] = visible;
      for (int head = 0; head < heads2_; ++head) visible_[query2++] = visible;
    }
  }

  // Calls body(begin, end, k_map) for runs of at most kTile queries that read the same K.
  template <typename Body>
  void ForEachTile(Body body) {
    const int split = format_.k_maps == 2 ? queries1_ : queries_;
    for (int begin = 0; begin < split; begin += kTile) body(begin, Least(begin + kTile, split), 0);
    for (int begin = split; begin < queries_; begin += kTile)
      body(begin, Least(begin + kTile, queries_), 1);
  }

  // A tile's q, transposed to [head_dim][end - begin].
  void PackQueries(int begin, int end) {
    float* to = q_ + static_cast<int64_t>(begin) * format_.head_dim;
    for (int query = begin; query < end; ++query) {
      const bool first_map = query < queries1_;
      const int heads = first_map ? heads1_ : heads2_;
      const int in_map = first_map ? query : query - queries1_;
      const int head = (first_map ? 0 : call_.num_q1_heads) + task_.group * heads + in_map % heads;
      const float* from = call_.q + (task_.first_row + in_map / heads) * call_.q_width +
                          static_cast<int64_t>(head) * format_.head_dim;
      for (int d = 0; d < format_.head_dim; ++d) to[d * (end - begin) + query - begin] = from[d];
    }
  }

  const std::byte* PageOf(int slot) const {
    return kv_.Page(task_.pages[slot / format_.page_size], task_.group);
  }

  // Where the runs of a step lie in memory.
  struct Runs {
    const std::byte* k[kStep / kRun];  // map 1
    const std::byte* v[kStep / kRun];
  };
  void Locate(int first_slot, Runs& runs) const {
    const int num_slots = Least(kStep, task_.position + task_.num_tokens - first_slot);
    for (int slot = 0; slot < num_slots; slot += kRun) {
      const std::byte* page = PageOf(first_slot + slot);
      const int in_page = (first_slot + slot) % format_.page_size;
      runs.k[slot / kRun] = page + BytesOf<Codec>(format_.KOffset(0, 0, in_page));
      runs.v[slot / kRun] = page + BytesOf<Codec>(format_.VOffset(0, in_page));
    }
  }

  // `next`: the runs to fetch meanwhile, or nullptr.
  void Step(int first_slot, const Runs& runs, const Runs* next) {
    const int num_slots = Least(kStep, task_.position + task_.num_tokens - first_slot);
    SetVisible(first_slot);
    // The first tile of each map, and of the values, fetches ahead for all.
    ForEachTile([&](int begin, int end, int k_map) {
      ScoreTile(begin, end, k_map, runs,
                begin == 0 || (k_map == 1 && begin == queries1_) ? next : nullptr);
    });
    for (int query = 0; query < queries_; ++query) Softmax(query, visible_[query]);
    for (int run = 0; run * kRun < num_slots; ++run) {
      for (int begin = 0; begin < queries_; begin += kTile) {
        const std::byte* ahead = next != nullptr && begin == 0 ? next->v[run] : nullptr;
        AddTileValues(run * kRun, begin, Least(begin + kTile, queries_), runs.v[run], ahead);
      }
    }
  }

  void ScoreTile(int begin, int end, int k_map, const Runs& runs, const Runs* next) {
    int num_slots = 0;
    for (int query = begin; query < end; ++query) num_slots = Most(num_slots, visible_[query]);
    const int num_runs = (num_slots + kRun - 1) / kRun;
    const std::byte* k[kStep / kRun];
    const std::byte* k_next[kStep / kRun];
    for (int run = 0; run < num_runs; ++run) {
      k[run] = runs.k[run] + BytesOf<Codec>(format_.KMapBegin(k_map));
      if (next != nullptr) k_next[run] = next->k[run] + BytesOf<Codec>(format_.KMapBegin(k_map));
    }
    const TileFunctions& functions = Functions(end - begin);
    const float* q = q_ + static_cast<int64_t>(begin) * format_.head_dim;
    for (int run = 0; run < num_runs;) {
      const bool several = run + RunsAtOnce(end - begin) <= num_runs;
      float* scores = p_ + static_cast<int64_t>(begin) * kStep + run * kRun;
      (several ? functions.several_runs : functions.one_run)(
          q, k + run, next != nullptr ? k_next + run : nullptr, format_.head_dim, format_.page_size,
          call_.scale, scores);
      run += several ? RunsAtOnce(end - begin) : 1;
    }
  }

  const TileFunctions& Functions(int queries) const { return kTileFunctions<Codec>[queries]; }

  // Stage 2 for one query: scores become p. Slots from `num_slots` on may hold anything, and count
  // as -infinity.
  void Softmax(int query, int num_slots) {
    if (num_slots == kStep) {
      SoftmaxVectors<true>(query, kStep / kLanes, kStep);
    } else if (num_slots > 0) {
      SoftmaxVectors<false>(query, (num_slots + kLanes - 1) / kLanes, num_slots);
    }
  }

  template <bool kFull>
  [[gnu::always_inline]] void SoftmaxVectors(int query, int num_vectors, int num_slots) {
    float* p = p_ + static_cast<int64_t>(query) * kStep;
    F32 values[kStep / kLanes];
    F32 largest = Set1(-kInfinity);
    if constexpr (kFull) num_vectors = kStep / kLanes;
    for (int i = 0; i < num_vectors; ++i) {
      values[i] = Load(p + i * kLanes);
      if constexpr (!kFull)
        values[i] = SelectFirst(num_slots - i * kLanes, values[i], Set1(-kInfinity));
      largest = Max(largest, values[i]);
    }
    const float step_max = ReduceMax(largest);
    F32 sum = Load(sum_ + query * 16);
    if (step_max > max_[query]) {
      const F32 factor = ExpOfBounded(Set1(max_[query] - step_max));
      max_[query] = step_max;
      sum = Mul(sum, factor);
      float* out = out_ + query * out_stride_;
      for (int64_t i = 0; i < out_stride_; i += kLanes) Store(out + i, Mul(Load(out + i), factor));
    }
    const F32 max = Set1(max_[query]);
    for (int i = 0; i < num_vectors; ++i) {
      const F32 value = ExpOfBounded(Sub(values[i], max));
      Store(p + i * kLanes, value);
      sum = Add(sum, value);
    }
    Store(sum_ + query * 16, sum);
  }

  // The run of slots from `run` on: jointly as far as all queries of the tile see, then each query
  // by itself.
  void AddTileValues(int run, int begin, int end, const std::byte* v, const std::byte* next) {
    int visible[kTile];
    int joint = kRun;
    for (int query = begin; query < end; ++query) {
      visible[query - begin] = Most(0, Least(kRun, visible_[query] - run));
      joint = Least(joint, visible[query - begin]);
    }
    const float* p = p_ + static_cast<int64_t>(begin) * kStep + run;
    float* out = out_ + begin * out_stride_;
    if (joint > 0)
      Functions(end - begin).values(p, v, next, joint, format_.v_dim, out, out_stride_);
    for (int i = 0; i < end - begin; ++i) {
      if (visible[i] == joint) continue;
      const std::byte* rest = v + BytesOf<Codec>(static_cast<int64_t>(joint) * format_.v_dim);
      Functions(1).values(p + i * kStep + joint, rest, nullptr, visible[i] - joint, format_.v_dim,
                          out + i * out_stride_, out_stride_);
    }
  }

  // Stage 4 of one token and signal head of the group.
  void Finish(int token, int head) {
    const int query1 = token * heads1_ + head;
    const float* out1 = out_ + query1 * out_stride_;
    const F32 per_sum1 = Set1(1.0f / ReduceAdd(Load(sum_ + query1 * 16)));
    const float* out2 = nullptr;
    F32 per_sum2 = Zero();
    F32 minus_lambda = Zero();
    if (heads2_ > 0) {
      const int query2 = queries1_ + token * heads2_ + head / (heads1_ / heads2_);
      out2 = out_ + query2 * out_stride_;
      per_sum2 = Set1(1.0f / ReduceAdd(Load(sum_ + query2 * 16)));
      const int64_t row = task_.first_row + token;
      const float lambda =
          call_.lambda_rows == nullptr
              ? call_.lambda
              : call_.lambda_rows[row * call_.num_q1_heads + task_.group * heads1_ + head];
      minus_lambda = Set1(-lambda);
    }
    float* to = call_.out + (task_.first_row + token) * call_.out_width +
                static_cast<int64_t>(task_.group * heads1_ + head) * format_.v_dim;
    F32 squares = Zero();
    for (int d = 0; d < format_.v_dim; d += kLanes) {
      const int n = Least(kLanes, format_.v_dim - d);
      F32 o = Mul(Load(out1 + d), per_sum1);
      if (out2 != nullptr) o = Fma(minus_lambda, Mul(Load(out2 + d), per_sum2), o);
      o = SelectFirst(n, o, Zero());
      squares = Fma(o, o, squares);
      StoreFirst(to + d, n, o);
    }
    float factor = call_.out_scale;
    if (call_.has_sub_norm) {
      const float mean = ReduceAdd(squares) / static_cast<float>(format_.v_dim);
      factor = factor / __builtin_sqrtf(mean + call_.sub_norm_eps);
    }
    for (int d = 0; d < format_.v_dim; d += kLanes) {
      const int n = Least(kLanes, format_.v_dim - d);
      F32 o = Mul(LoadFirst(to + d, n), Set1(factor));
      if (call_.sub_norm_weight != nullptr) o = Mul(o, LoadFirst(call_.sub_norm_weight + d, n));
      StoreFirst(to + d, n, o);
    }
  }

  const AttentionCall& call_;
  const AttentionTask& task_;
  const PagedKv kv_;
  const KvFormat& format_;
  const int heads1_;  // query heads of the group, by map
  const int heads2_;
  const int queries1_;
  const int queries_;
  const int64_t out_stride_;
  float* p_;      // [queries][kStep], scores and then probabilities
  float* out_;    // [queries][out_stride_], not yet normalised
  float* sum_;    // [queries][16], a lane each
  float* q_;      // tiles of [head_dim][queries of the tile]
  float* max_;    // [queries]
  int* visible_;  // [queries], how many slots of the present step the query may see
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
