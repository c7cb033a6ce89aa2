// SPDX-License-Identifier: Apache-2.0
// Products for the tokens that a step generates: few rows of x, so that the time is that of reading
// the weights. A warp holds 16 output features as the A operand of mma.m16n8k16 and eight tokens as
// B. Eight warps, of one thread block or of several, each stream one part of in_features. Weights
// are bfloat16 or codes, which become bfloat16 numbers in registers, exactly. x is bfloat16, also
// where the weights are fp8.
//
// *Invariants*: part p of in_features is groups [G p / 8, G (p + 1) / 8) of 64 features, with G =
// ceil(in_features / 64). c[p] is one chain of mma over its part, groups in ascending order, from
// 0. With int4 weights a group is a chain from 0, and c[p] adds it times its scale, fused, in
// ascending order. An element's sum is ((c0 + c1) + (c2 + c3)) + ((c4 + c5) + (c6 + c7)). Then in
// float32: the output feature's scale times it, + bias, + y if it accumulates; then it is rounded
// to y's type once. So a token's bits depend on its x and on the weights alone: not on the other
// tokens, their number, or the plan. A NaN or infinity in x or in a weight reaches every output
// that has it as a factor, and no other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/base/cuda/device.h"
#include "kernels/base/cuda/memory.h"
#include "kernels/base/cuda/stream.h"
#include "kernels/base/dtype.h"
#include "kernels/base/status.h"
#include "kernels/ops/linear_quantized_cuda.h"
#include "kernels/ops/rope_append.h"
#include "kernels/ops/rowwise.h"
#include "kernels/ops/weight_tiles.h"

namespace diffserve::cuda {

class PackedLinear;

inline constexpr int kFewRowsParts = 8;
inline constexpr int kFewRowsTileMax = 64;  // tokens of a thread block

// What becomes of the sums.
enum class FewRowsForm : uint8_t {
  kStore,    // y[t][o] = sum (+ bias) (+ y)
  kSiluMul,  // y[t][o] = silu(gate) up, of sums o and out_features / 2 + o rounded to bfloat16, as
             // SiluMul computes it from a stored product
  kAppend,   // a stored product's q, k and v are rotated and appended to bfloat16 pages, with the
             // bits of RopeAppend
};

// A tile is 16 output features in two strips of eight; a unit, what a thread block computes at
// least: a strip, or with kSiluMul and kAppend a tile.
struct FewRowsTiles {
  FewRowsForm form = FewRowsForm::kStore;
  int rows = 0;  // output features; with kSiluMul, of a half
  // With kAppend: the first `paired_rows` are heads of `head_dim`, of which a tile has dims i to i
  // + 7 and those head_dim / 2 after them. Other tiles are neighbours.
  int head_dim = 0;
  int paired_rows = 0;

  constexpr int StripsOfUnit() const { return form == FewRowsForm::kStore ? 1 : 2; }
  constexpr int UnitsOfTile() const { return form == FewRowsForm::kStore ? 2 : 1; }
  constexpr int NumUnits() const {
    return form == FewRowsForm::kAppend ? rows / 16 : (rows + 7) / 8;
  }
};

// The weights of a later product. Thread blocks that have asked for their last weights bring the
// first `units` of each worker of that product (FewRowsPlan) into the L2 cache. Changes no result.
struct FewRowsAhead {
  const std::byte* weight = nullptr;  // strips, which are neighbours in memory
  int64_t bytes = 0;                  // of all of them
  int64_t strip_bytes = 0;
  FewRowsTiles tiles = {};
  int workers = 1;
  int units = 0;  // 0: nothing
};

// x as the norm of float32 rows, with the bits of RmsNorm or LayerNorm (rowwise.h). Every thread
// block computes all of it, so this is for few tokens: a thread block has at most
// kFewRowsNormTokens.
struct FewRowsNorm {
  const float* rows = nullptr;    // [num_tokens, in_features]; nullptr: x is given
  const float* weight = nullptr;  // [in_features]
  const float* bias = nullptr;    // [in_features] of LayerNorm; nullptr: RmsNorm
  float eps = 0;
};
inline constexpr int kFewRowsNormTokens = 8;

// The same of PolyNormMul, whose rows are wide: up to this many tokens.
inline constexpr int kFewRowsPolyTokens = 2;

// See FewRowsTiles.
struct FewRowsPairs {
  int head_dim = 0;
  int rows = 0;
  static FewRowsPairs Of(const RopeAppendArgs<BFloat16>& append);
};
// Whether kAppend writes pages of this type. Codes need the largest number of a whole head.
constexpr bool FewRowsAppendTo(DType pages) { return pages == DType::kBFloat16; }

// Device memory. REQUIRES: in_features and x_stride are multiples of 8; weight and x are 16-byte
// aligned. With kSiluMul and kAppend out_features is a multiple of 16, y is bfloat16 and does not
// accumulate.
struct FewRowsProduct {
  WeightFormat format = WeightFormat::kBFloat16;  // or a quantised one
  const void* weight = nullptr;                   // as QuantizedMatrix's codes
  const float* scale = nullptr;                   // the same
  int in_features = 0;
  int out_features = 0;
  const BFloat16* x = nullptr;  // [num_tokens, in_features]
  int64_t x_stride = 0;         // elements from row to row of x
  FewRowsNorm norm = {};        // in the place of x
  // Likewise: x as PolyNormMul computes it of poly.x, [num_tokens, 2 in_features], without poly.out
  // and the sizes. nullptr: x is given.
  PolyNormMulArgs<BFloat16> poly = {};
  int num_tokens = 0;
  FewRowsForm form = FewRowsForm::kStore;
  void* y = nullptr;                 // [num_tokens, YWidth()]; nullptr with kAppend
  DType y_dtype = DType::kBFloat16;  // or kFloat32
  const void* bias = nullptr;        // [out_features] of y_dtype, or nullptr
  bool accumulate = false;
  FewRowsPairs pairs = {};                           // with kAppend
  const RopeAppendArgs<BFloat16>* append = nullptr;  // likewise: what RopeAppend takes besides qkv
  int first_row = 0;                                 // likewise: of the batch
  // The operation before it on the stream is a kernel. Where a device can, the product begins to
  // read its weights before that one ends.
  bool follows_kernel = false;
  FewRowsAhead ahead = {};

  constexpr int YWidth() const {
    return form == FewRowsForm::kSiluMul ? out_features / 2 : out_features;
  }
  constexpr bool MakesX() const { return norm.rows != nullptr || poly.x != nullptr; }
  constexpr FewRowsTiles Tiles() const { return {form, YWidth(), pairs.head_dim, pairs.rows}; }
  // Bytes from eight output features to the next.
  constexpr int64_t StripBytes() const {
    if (format == WeightFormat::kBFloat16) return int64_t{16} * in_features;
    if (format == WeightFormat::kFp8E4M3) return int64_t{8} * Fp8Padded(in_features);
    return NumQuantGroups(in_features) * TileBytes(format);
  }
  // The same for at most `count` tokens from `begin` on.
  FewRowsProduct Tokens(int begin, int count) const {
    FewRowsProduct part = *this;
    part.num_tokens = std::min(count, num_tokens - begin);
    if (norm.rows != nullptr) {
      part.norm.rows += begin * int64_t{in_features};
    } else if (poly.x != nullptr) {
      part.poly.x += begin * int64_t{2} * in_features;
    } else {
      part.x += begin * x_stride;
    }
    part.first_row += begin;
    if (y == nullptr) return part;
    part.y = static_cast<std::byte*>(y) +
             static_cast<size_t>(begin) * static_cast<size_t>(YWidth()) * SizeOf(y_dtype);
    return part;
  }
};

struct FewRowsLimits {
  int num_sms = 1;
  size_t shared_bytes_max = 0;  // of a thread block
  size_t partial_bytes = 0;     // for sums of products that several thread blocks share
  double ahead_bytes = 0;       // of a later product's weights, to be brought into the L2 cache
};
inline constexpr size_t kFewRowsCounters = 1 << 15;

// Who computes what. A worker is the warps of a thread block that have one run of units; a thread
// block has as many workers as `splits`, each over its parts of in_features.
struct FewRowsPlan {
  int splits = 1;         // thread blocks that share in_features: 1, 2, 4 or 8
  int columns = 1;        // groups of `splits` thread blocks that share the units
  int tile = 1;           // tokens of a thread block
  int tiles_at_once = 1;  // token tiles whose thread blocks are neighbours and share the weights
  int stages = 2;         // pieces of weights on their way to each warp, and one in use

  constexpr int Columns8() const { return tile <= 8 ? 1 : tile <= 16 ? 2 : tile <= 32 ? 4 : 8; }
  // The most tiles of a worker.
  int Passes(const FewRowsProduct& product) const;
  int TokenTiles(const FewRowsProduct& product) const {
    return (product.num_tokens + tile - 1) / tile;
  }
  size_t SharedBytes(const FewRowsProduct& product) const;
  // One counter for each pass of each group of `splits` thread blocks; 0 without splits.
  size_t NumCounters(const FewRowsProduct& product) const;
  size_t PartialBytes(const FewRowsProduct& product) const;
};

// The plan of least estimated time, if `splits` is given of those with as many. Error:
// kUnimplemented if x does not fit into shared memory, or the sums of several thread blocks into
// partial_bytes.
Result<FewRowsPlan> PlanFewRows(const FewRowsProduct& product, const FewRowsLimits& limits,
                                std::optional<int> splits = {});

// As many units of each worker as `bytes` hold, at most all.
FewRowsAhead AheadOf(const FewRowsProduct& product, const FewRowsPlan& plan, double bytes);

// What products need besides their operands: one of them at a time.
class FewRows {
 public:
  FewRows() = default;
  // Takes what `device`, the calling thread's, has; counters are cleared on the stream.
  static Result<FewRows> Create(const DeviceInfo& device, size_t partial_bytes,
                                const Stream& stream);

  const FewRowsLimits& limits() const { return limits_; }
  int compute_capability() const { return compute_capability_; }  // of the device
  // The weights of a product that will take its best plan; nothing if no plan fits.
  FewRowsAhead AheadOf(const FewRowsProduct& next) const;
  // By the best plan, for all tokens at once if they fit.
  Status Multiply(const FewRowsProduct& product, const Stream& stream) const;
  // REQUIRES: the plan fits the limits.
  Status Multiply(const FewRowsProduct& product, const FewRowsPlan& plan,
                  const Stream& stream) const;

 private:
  FewRowsLimits limits_;
  int compute_capability_ = 0;
  DeviceBuffer partials_;
  DeviceBuffer counters_;  // int32, all 0 between products
};

// The product whose weights are read next, as far as its plan depends on it.
struct FewRowsNext {
  const PackedLinear* weight = nullptr;  // nullptr: none is known
  int num_tokens = 0;
  FewRowsForm form = FewRowsForm::kStore;
  FewRowsNorm norm = {};
  PolyNormMulArgs<BFloat16> poly = {};
  FewRowsPairs pairs = {};
};

// What cuda::LinearFewRows takes besides a matrix and its rows.
struct FewRowsUse {
  const FewRows& few_rows;
  FewRowsNorm norm = {};                // in the place of x
  PolyNormMulArgs<BFloat16> poly = {};  // likewise
  FewRowsNext next = {};
  bool follows_kernel = false;  // as FewRowsProduct's
};

// Up to how many tokens LinearFewRows is thought to be faster than Linear
// (docs/results/gpu-predicted.md): with quantised weights, most where Linear widens them; 0: for
// none.
int FewRowsAtBest(const PackedLinear& weight, const FewRows& few_rows);

}  // namespace diffserve::cuda
