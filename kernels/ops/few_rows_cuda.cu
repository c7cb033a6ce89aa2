// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/cuda/launch.cuh"
#include "kernels/ops/few_rows_finish.cuh"
#include "kernels/ops/poly_norm.cuh"
#include "kernels/ops/row_access.cuh"

namespace diffserve::cuda {
namespace {

constexpr int kParts = kFewRowsParts;
constexpr int kThreads = 32 * kParts;
constexpr int kSumPitch = 20;  // floats of a token's sums; free of bank conflicts

}  // namespace

struct FewRowsCall {
  FewRowsProduct product;
  FewRowsPlan plan;
  RopeCall append;  // with kAppend
  int passes;
  float* partials;  // [counters][splits][workers][tokens][kSumRows]
  int* counters;
};

namespace {

__host__ __device__ constexpr int NumGroups(int in_features) {
  return (in_features + kFewRowsGroup - 1) / kFewRowsGroup;
}
__host__ __device__ constexpr int GroupBegin(int in_features, int part) {
  return NumGroups(in_features) * part / kParts;
}

// Shared memory of a thread block: pieces of weights, x, sums, FewRowsShared.
struct FewRowsLayout {
  int stage_bytes;
  int x_tokens;
  int x_bytes;
  int sum_floats;  // of one buffer
  int sum_buffers;

  // A warp's stage has warp_stage_bytes.
  __host__ __device__ FewRowsLayout(const FewRowsProduct& product, const FewRowsPlan& plan,
                                    int warp_stage_bytes)
      : stage_bytes(kParts * warp_stage_bytes) {
    const int columns8 = plan.Columns8();
    // Absent tokens of the last eight cost no memory where there are only eight.
    x_tokens = columns8 == 1 ? plan.tile : 8 * columns8;
    const int groups = (NumGroups(product.in_features) + plan.splits - 1) / plan.splits;
    x_bytes = groups * x_tokens * kXPitch;
    sum_floats = kParts * 8 * columns8 * kSumPitch;
    sum_buffers = columns8 <= 4 ? 2 : 1;
  }
};

struct FewRowsShared {
  int unit_begin[kParts + 1];  // of each worker, and the end
  int is_last;                 // of the thread blocks that share a pass
  float partial[kFewRowsNormTokens][kParts];
  float mean[kFewRowsNormTokens], factor[kFewRowsNormTokens];
  AppendPlace places[kFewRowsTileMax];
};

// A thread's place in the grid.
struct FewRowsPlace {
  int split, token_tile, column;
  int slot;  // of counters, for pass 0
  __device__ explicit FewRowsPlace(const FewRowsCall& call) {
    const int block = static_cast<int>(blockIdx.x), in_column = block / call.plan.splits;
    split = block % call.plan.splits;
    token_tile = static_cast<int>(blockIdx.y) * call.plan.tiles_at_once +
                 in_column % call.plan.tiles_at_once;
    column = in_column / call.plan.tiles_at_once;
    slot = (token_tile * call.plan.columns + column) * call.passes;
  }
};

// What a warp fetches next: it goes through the pieces of its part, tile by tile.
struct FewRowsCursor {
  int unit, end_unit;
  int group, begin_group, end_group;
  FewRowsTile tile;

  template <typename Pieces>
  __device__ __forceinline__ void Fetch(const FewRowsProduct& product, const Pieces& pieces,
                                        int stage) {
    if (unit < end_unit && begin_group < end_group) {
      pieces.Fetch(product, tile, group * kFewRowsGroup, end_group * kFewRowsGroup, stage);
      group += Pieces::kGroups;
      if (group >= end_group) {
        group = begin_group;
        unit += product.Tiles().UnitsOfTile();
        tile = TileOf(product.Tiles(), unit, end_unit);
      }
    }
    CpAsyncCommit();
  }
};

// The groups of x that the block's parts need, for the block's tokens, zeros beyond in_features.
__device__ __forceinline__ void LoadX(const FewRowsCall& call, int first_token, int num_tokens,
                                      int first_group, int num_groups, std::byte* to,
                                      int x_tokens) {
  constexpr int kChunks = kFewRowsGroup / 8;
  const FewRowsProduct& product = call.product;
  const int chunks = num_groups * kChunks;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < num_tokens * chunks; i += kThreads) {
    const int token = i / chunks, chunk = i % chunks;
    const int feature = first_group * kFewRowsGroup + chunk * 8;
    Words4 words = {};
    if (feature < product.in_features) {
      words = *reinterpret_cast<const Words4*>(
          product.x + static_cast<int64_t>(first_token + token) * product.x_stride + feature);
    }
    *reinterpret_cast<Words4*>(to + (chunk / kChunks * x_tokens + token) * kXPitch +
                               chunk % kChunks * 16) = words;
  }
}

// sums[t] += value(number, t) over the row of token t, added as the kernels of rowwise_cuda.cu add:
// by thread, in a tree within each warp, then the warps in ascending order.
template <typename Value>
__device__ __forceinline__ void SumRows(const FewRowsProduct& product, int first_token,
                                        int num_tokens, FewRowsShared& shared, const Value& value,
                                        float (&sums)[kFewRowsNormTokens]) {
  static_assert(kThreads == kRowThreads);
  const int64_t width = product.in_features;
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int token = 0; token < kFewRowsNormTokens; ++token) {
    sums[token] = 0.0f;
    if (token >= num_tokens) continue;
    const float* row = product.norm.rows + (first_token + token) * width;
    for (int64_t i = thread * kVecWide; i < width; i += kThreads * kVecWide) {
      float values[kVecWide];
      LoadRow<kVecWide>(row + i, values);
#pragma unroll
      for (int k = 0; k < kVecWide; ++k) sums[token] += value(values[k], token);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      sums[token] += __shfl_xor_sync(0xffffffffu, sums[token], distance);
    if (thread % 32 == 0) shared.partial[token][thread / 32] = sums[token];
  }
  __syncthreads();
#pragma unroll
  for (int token = 0; token < kFewRowsNormTokens; ++token) {
    sums[token] = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kParts; ++warp) sums[token] += shared.partial[token][warp];
  }
}

// LoadX with x = the norm of the tokens' rows.
__device__ __forceinline__ void LoadNormed(const FewRowsCall& call, int first_token, int num_tokens,
                                           int first_group, int num_groups, std::byte* to,
                                           int x_tokens, FewRowsShared& shared) {
  const FewRowsProduct& product = call.product;
  const FewRowsNorm& norm = product.norm;
  const float width = static_cast<float>(product.in_features);
  const bool has_mean = norm.bias != nullptr;
  const int thread = static_cast<int>(threadIdx.x);
  float sums[kFewRowsNormTokens], mean[kFewRowsNormTokens] = {};
  if (has_mean) {
    SumRows(product, first_token, num_tokens, shared, [](float v, int) { return v; }, sums);
#pragma unroll
    for (int token = 0; token < kFewRowsNormTokens; ++token) mean[token] = sums[token] / width;
    __syncthreads();
    SumRows(
        product, first_token, num_tokens, shared,
        [&](float v, int token) { return (v - mean[token]) * (v - mean[token]); }, sums);
  } else {
    SumRows(product, first_token, num_tokens, shared, [](float v, int) { return v * v; }, sums);
  }
#pragma unroll
  for (int token = 0; token < kFewRowsNormTokens; ++token) {
    if (thread != token) continue;
    shared.mean[token] = mean[token];
    shared.factor[token] = 1.0f / sqrtf(sums[token] / width + norm.eps);
  }
  __syncthreads();
  constexpr int kChunks = kFewRowsGroup / 8;
  const int chunks = num_groups * kChunks;
  for (int i = thread; i < num_tokens * chunks; i += kThreads) {
    const int token = i / chunks, chunk = i % chunks;
    const int feature = first_group * kFewRowsGroup + chunk * 8;
    float value[8] = {};
    if (feature < product.in_features) {
      const float factor = shared.factor[token], row_mean = shared.mean[token];
      float weight[8], bias[8] = {};
      LoadRow<8>(norm.rows + int64_t{first_token + token} * product.in_features + feature, value);
      LoadRow<8>(norm.weight + feature, weight);
      if (has_mean) LoadRow<8>(norm.bias + feature, bias);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        value[k] = has_mean ? (value[k] - row_mean) * factor * weight[k] + bias[k]
                            : value[k] * factor * weight[k];
      }
    }
    StoreRow<8>(value,
                reinterpret_cast<BFloat16*>(to + (chunk / kChunks * x_tokens + token) * kXPitch +
                                            chunk % kChunks * 16));
  }
}

// LoadX with x = PolyNormMul of the tokens' gates and ups, with its sums in its order.
__device__ __forceinline__ void LoadPolyNorm(const FewRowsCall& call, int first_token,
                                             int num_tokens, int first_group, int num_groups,
                                             std::byte* to, int x_tokens, FewRowsShared& shared) {
  constexpr int kChunks = kFewRowsGroup / 8;
  const FewRowsProduct& product = call.product;
  const int width = product.in_features, thread = static_cast<int>(threadIdx.x);
  for (int token = 0; token < num_tokens; ++token) {
    const BFloat16* const gate = product.poly.x + (first_token + token) * int64_t{2} * width;
    float powers[3] = {};
    for (int i = thread * kVecWide; i < width; i += kThreads * kVecWide) {
      float z[kVecWide];
      LoadRow<kVecWide>(gate + i, z);
#pragma unroll
      for (int k = 0; k < kVecWide; ++k) AddPowers(z[k], powers);
    }
#pragma unroll
    for (int term = 0; term < 3; ++term) {
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2)
        powers[term] += __shfl_xor_sync(0xffffffffu, powers[term], distance);
      if (thread % 32 == 0) shared.partial[term][thread / 32] = powers[term];
    }
    __syncthreads();
    float factor[3];
#pragma unroll
    for (int term = 0; term < 3; ++term) {
      float sum = 0.0f;
#pragma unroll
      for (int warp = 0; warp < kParts; ++warp) sum += shared.partial[term][warp];
      factor[term] = PolyNormFactor(product.poly.weight[term], sum, width, product.poly.eps);
    }
    for (int i = thread; i < num_groups * kChunks; i += kThreads) {
      const int feature = first_group * kFewRowsGroup + i * 8;
      float z[8] = {}, up[8];
      if (feature < width) {
        LoadRow<8>(gate + feature, z);
        LoadRow<8>(gate + width + feature, up);
#pragma unroll
        for (int k = 0; k < 8; ++k) z[k] = PolyNormTimesUp(factor, product.poly.bias, z[k], up[k]);
      }
      StoreRow<8>(z, reinterpret_cast<BFloat16*>(to + (i / kChunks * x_tokens + token) * kXPitch +
                                                 i % kChunks * 16));
    }
    __syncthreads();
  }
}

// sums += the weights of a group times x, with the group's scales.
template <typename Pieces, int kColumns8>
__device__ __forceinline__ void MultiplyScaledGroup(const Pieces& pieces, int stage, int group,
                                                    typename Pieces::X x,
                                                    float (&sums)[kColumns8][4]) {
  const auto weights = pieces.Read(stage, group);
  uint32_t a[2][2][4];
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) weights.Fragments(pair, a[pair]);
#pragma unroll
  for (int n = 0; n < kColumns8; ++n) {
    float group_sums[4] = {};
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      uint32_t b[4];
      Pieces::XFragments(x + n * 8 * kXPitch, pair, b);
      MmaBFloat16(group_sums, a[pair][0], b[0], b[1]);
      MmaBFloat16(group_sums, a[pair][1], b[2], b[3]);
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) sums[n][c] = fmaf(group_sums[c], weights.Scale(c / 2), sums[n][c]);
  }
}

// The same without scales.
template <typename Pieces, int kColumns8>
__device__ __forceinline__ void MultiplyGroup(const Pieces& pieces, int stage, int group,
                                              typename Pieces::X x, float (&sums)[kColumns8][4]) {
  const auto weights = pieces.Read(stage, group);
  // Unrolled for 64 tokens, ptxas loads bfloat16 weights too far ahead and spills. Codes are in
  // registers, whose numbers must be constants.
  [[maybe_unused]] constexpr int kUnrolled = kColumns8 == 8 && !Pieces::kAreCodes ? 1 : 2;
#pragma unroll kUnrolled
  for (int pair = 0; pair < 2; ++pair) {
    uint32_t a[2][4];
    weights.Fragments(pair, a);
#pragma unroll
    for (int n = 0; n < kColumns8; ++n) {
      uint32_t b[4];
      Pieces::XFragments(x + n * 8 * kXPitch, pair, b);
      MmaBFloat16(sums[n], a[0], b[0], b[1]);
      MmaBFloat16(sums[n], a[1], b[2], b[3]);
    }
  }
}

// Whether this thread block is the last of those that share a pass. It then sees what all wrote.
__device__ __forceinline__ bool IsLast(FewRowsShared& shared, int* counter, int count) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    shared.is_last = atomicAdd(counter, 1) == count - 1;
    if (shared.is_last) *counter = 0;
    __threadfence();
  }
  __syncthreads();
  return shared.is_last;
}

// The grid's threads share the lines of 128 bytes.
__device__ __forceinline__ void Prefetch(const FewRowsAhead& ahead) {
  constexpr int kLine = 128;
  const int lines = static_cast<int>((ahead.strip_bytes + kLine - 1) / kLine);
  const int threads = static_cast<int>(gridDim.x) * kThreads, num_units = ahead.tiles.NumUnits();
  const auto prefetch = [&](int row, int line) {
    const int64_t at = row / kStripRows * ahead.strip_bytes + line * kLine;
    if (at < ahead.bytes) PrefetchL2(ahead.weight + at);
  };
  for (int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
       i < ahead.workers * ahead.units * lines; i += threads) {
    const int worker = i / lines / ahead.units;
    const int unit = num_units * worker / ahead.workers + i / lines % ahead.units;
    if (unit >= num_units) continue;
    const FewRowsTile tile = TileOf(ahead.tiles, unit, unit + 1);
    prefetch(tile.row, i % lines);
    if (tile.count[1] > 0) prefetch(tile.row + tile.second, i % lines);
  }
}

}  // namespace

// Grid: splits, token tiles at once, columns; rounds of token tiles.
template <typename Pieces, int kColumns8>
__global__ void __launch_bounds__(kThreads, kColumns8 == 8 ? 1 : 2)
    FewRowsKernel(const __grid_constant__ FewRowsCall call) {
  constexpr int kTokens = 8 * kColumns8;
  [[maybe_unused]] constexpr int kUnrolledGroups = 2;
  const FewRowsProduct& product = call.product;
  const FewRowsPlan& plan = call.plan;
  const FewRowsLayout layout(product, plan, Pieces::kStageBytes);
  const FewRowsPlace place(call);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first_token = place.token_tile * plan.tile;
  const int num_tokens = min(plan.tile, product.num_tokens - first_token);
  if (num_tokens <= 0) {
    WaitForPrevious();
    return;
  }

  // Which units and which part this warp has.
  std::byte* const x = DynamicShared() + plan.stages * layout.stage_bytes;
  float* const sums_memory = reinterpret_cast<float*>(x + layout.x_bytes);
  auto& shared = *reinterpret_cast<FewRowsShared*>(sums_memory +
                                                   layout.sum_buffers * layout.sum_floats);
  int* const unit_begin = shared.unit_begin;
  if (const int i = static_cast<int>(threadIdx.x); i <= plan.splits) {
    unit_begin[i] = product.Tiles().NumUnits() * (place.column * plan.splits + i) /
                    (plan.columns * plan.splits);
  }
  __syncthreads();
  const int parts = kParts / plan.splits;  // of this block
  const int worker = warp / parts, first_part = place.split * parts;
  const int part = first_part + warp % parts;

  // The first pieces of weights are asked for, and x is read.
  const Pieces pieces(DynamicShared() + warp * plan.stages * Pieces::kStageBytes, lane);
  FewRowsCursor cursor = {
      .unit = unit_begin[worker],
      .end_unit = unit_begin[worker + 1],
      .group = GroupBegin(product.in_features, part),
      .begin_group = GroupBegin(product.in_features, part),
      .end_group = GroupBegin(product.in_features, part + 1),
      .tile = TileOf(product.Tiles(), unit_begin[worker], unit_begin[worker + 1])};
  for (int stage = 0; stage < plan.stages - 1; ++stage) cursor.Fetch(product, pieces, stage);
  WaitForPrevious();
  const int first_group = GroupBegin(product.in_features, first_part);
  const int num_groups = GroupBegin(product.in_features, first_part + parts) - first_group;
  if (kColumns8 == 1 && product.norm.rows != nullptr) {
    LoadNormed(call, first_token, num_tokens, first_group, num_groups, x, layout.x_tokens, shared);
  } else if (kColumns8 == 1 && product.poly.x != nullptr) {
    LoadPolyNorm(call, first_token, num_tokens, first_group, num_groups, x, layout.x_tokens,
                 shared);
  } else {
    LoadX(call, first_token, num_tokens, first_group, num_groups, x, layout.x_tokens);
  }
  if (product.form == FewRowsForm::kAppend && static_cast<int>(threadIdx.x) < num_tokens) {
    const int token = static_cast<int>(threadIdx.x);
    if (!FindPlace(call.append, product.first_row + first_token + token, &shared.places[token]))
      shared.places[token].slot = -1;
  }
  __syncthreads();
  const typename Pieces::X x_row = Pieces::XOf(x, lane, layout.x_tokens);
  const int group_bytes = layout.x_tokens * kXPitch;

  // Tile by tile, each warp its part.
  int stage = 0;
  for (int pass = 0; pass < call.passes; ++pass) {
    if (pass == call.passes - 1) {
      if (blockIdx.y == 0) Prefetch(product.ahead);
      LaunchDependents();
    }
    float sums[kColumns8][4] = {};
    if (unit_begin[worker] + pass * product.Tiles().UnitsOfTile() < unit_begin[worker + 1]) {
      for (int group = cursor.begin_group; group < cursor.end_group; group += Pieces::kGroups) {
        plan.stages == 2 ? CpAsyncWait<0>() : CpAsyncWait<1>();
        __syncwarp();
        cursor.Fetch(product, pieces, stage == 0 ? plan.stages - 1 : stage - 1);
        const typename Pieces::X at = x_row + (group - first_group) * group_bytes;
#pragma unroll kUnrolledGroups
        for (int i = 0; i < Pieces::kGroups; ++i) {
          if (group + i >= cursor.end_group) break;
          if constexpr (Pieces::kScalesGroups) {
            MultiplyScaledGroup(pieces, stage, i, at + i * group_bytes, sums);
          } else {
            MultiplyGroup(pieces, stage, i, at + i * group_bytes, sums);
          }
        }
        stage = stage + 1 == plan.stages ? 0 : stage + 1;
      }
    }
    float* const buffer = sums_memory + pass % layout.sum_buffers * layout.sum_floats;
    if (layout.sum_buffers == 1 && pass > 0) __syncthreads();
#pragma unroll
    for (int n = 0; n < kColumns8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        buffer[(warp * kTokens + 8 * n + lane % 4 * 2 + c % 2) * kSumPitch + lane / 4 +
               c / 2 * kStripRows] = sums[n][c];
      }
    }
    __syncthreads();

    // The parts are added. With splits, the last thread block to come adds their sums.
    PassSums done = {buffer, parts * kTokens * kSumPitch, kSumPitch, kTokens * kSumPitch, parts};
    if (plan.splits > 1) {
      const int elements = plan.splits * kTokens * kSumRows, slot = place.slot + pass;
      float* const partials = call.partials + static_cast<int64_t>(slot) * plan.splits * elements;
      for (int i = static_cast<int>(threadIdx.x); i < elements; i += kThreads) {
        partials[place.split * elements + i] = done.At(i / kSumRows / kTokens,
                                                       i / kSumRows % kTokens, i % kSumRows);
      }
      if (!IsLast(shared, call.counters + slot, plan.splits)) continue;
      done = {partials, kTokens * kSumRows, kSumRows, elements, plan.splits};
    }
    FinishPass<Pieces, kColumns8>(product, {call.append, shared.places}, plan.splits, done,
                                  unit_begin, pass, first_token, num_tokens);
  }
}

size_t FewRowsPlan::SharedBytes(const FewRowsProduct& product) const {
  const int warp_stage_bytes = WithPieces(
      product.format,
      []<typename Pieces>(std::type_identity<Pieces>) { return Pieces::kStageBytes; });
  const FewRowsLayout layout(product, *this, warp_stage_bytes);
  return static_cast<size_t>(stages * layout.stage_bytes + layout.x_bytes) +
         static_cast<size_t>(layout.sum_buffers * layout.sum_floats) * sizeof(float) +
         sizeof(FewRowsShared);
}

Status FewRows::Multiply(const FewRowsProduct& product, const FewRowsPlan& plan,
                         const Stream& stream) const {
  if (product.num_tokens == 0) return Status();
  const FewRowsCall call = {product,
                            plan,
                            product.append == nullptr ? RopeCall{} : RopeCallOf(*product.append),
                            plan.Passes(product),
                            partials_.as<float>(),
                            counters_.as<int>()};
  const int rounds = (plan.TokenTiles(product) + plan.tiles_at_once - 1) / plan.tiles_at_once;
  const LaunchShape shape = {
      dim3(static_cast<unsigned>(plan.splits * plan.columns * plan.tiles_at_once),
           static_cast<unsigned>(rounds)),
      dim3(kThreads), plan.SharedBytes(product),
      product.follows_kernel && compute_capability_ >= kHopperComputeCapability};
  const auto run = [&](auto* kernel) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared_bytes));
    if (error != cudaSuccess) return ToStatus(error, "shared memory of FewRows");
    return Launch("FewRows", shape, stream, kernel, call);
  };
  return WithPieces(product.format, [&]<typename Pieces>(std::type_identity<Pieces>) {
    switch (plan.Columns8()) {
      case 1:
        return run(FewRowsKernel<Pieces, 1>);
      case 2:
        return run(FewRowsKernel<Pieces, 2>);
      case 4:
        return run(FewRowsKernel<Pieces, 4>);
      default:
        return run(FewRowsKernel<Pieces, 8>);
    }
  });
}

}  // namespace diffserve::cuda
