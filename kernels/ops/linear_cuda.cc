// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>

#include "kernels/ops/few_rows_cuda.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/matrix_library.h"
#include "kernels/ops/weight_packer_cuda.h"
#include "kernels/ops/weight_tiles.h"
#include "kernels/process/check.h"

namespace diffserve::cuda {
namespace {

// cuBLASLt may round a product to y's type before it adds a bias and y, and does so on an H200. So
// it gives float32 sums where the result is bfloat16, and FinishSums rounds once.
bool NeedsSums(const QuantizedProduct& product) {
  return product.y_dtype == DType::kBFloat16 && (product.bias != nullptr || product.accumulate);
}

struct Scratch {
  std::byte* memory;
  size_t size_bytes;
};

// Features [first, first + num_features) of a product by bfloat16 rows of theirs.
struct WideRows {
  const void* rows;  // [num_features, in_features]
  int first;
  int num_features;
};

// The number of tokens at a time depends on the shape alone, so equal calls give equal bits.
Status MultiplyBySums(const QuantizedProduct& whole, const WideRows& weight, const Scratch& scratch,
                      MatrixLibrary& library, const Stream& stream) {
  constexpr int kTokensUnit = 128;  // rows of cuBLASLt's tiles
  const size_t row_bytes = static_cast<size_t>(weight.num_features) * sizeof(float);
  int tokens = static_cast<int>(std::min(scratch.size_bytes / row_bytes, size_t{1} << 20));
  DS_CHECK(tokens > 0, "the library has scratch memory for products with a bias");
  if (tokens > kTokensUnit) tokens -= tokens % kTokensUnit;
  auto* const sums = reinterpret_cast<float*>(scratch.memory);
  for (int begin = 0; begin < whole.num_tokens; begin += tokens) {
    QuantizedProduct product = whole.Tokens(begin, tokens);
    product.weight.scale = nullptr;  // widened rows are scaled
    DS_RETURN_IF_ERROR(library.Multiply({.weight = weight.rows,
                                         .in_features = whole.weight.in_features,
                                         .out_features = weight.num_features,
                                         .x = product.x,
                                         .x_stride = product.x_stride,
                                         .num_rows = product.num_tokens,
                                         .y = sums,
                                         .y_dtype = DType::kFloat32},
                                        stream));
    DS_RETURN_IF_ERROR(FinishSums(product,
                                  {.sums = sums,
                                   .first = weight.first,
                                   .num_features = weight.num_features,
                                   .stride = weight.num_features},
                                  stream));
  }
  return Status();
}

Status MultiplyWide(const QuantizedProduct& product, const WideRows& weight, const Scratch& scratch,
                    MatrixLibrary& library, const Stream& stream) {
  if (NeedsSums(product)) return MultiplyBySums(product, weight, scratch, library, stream);
  const bool is_whole = weight.num_features == product.weight.out_features;
  const size_t offset = static_cast<size_t>(weight.first) * SizeOf(product.y_dtype);
  // y is float32 where there is a bias.
  const auto* bias = static_cast<const float*>(product.bias);
  return library.Multiply({.weight = weight.rows,
                           .in_features = product.weight.in_features,
                           .out_features = weight.num_features,
                           .x = product.x,
                           .x_stride = product.x_stride,
                           .num_rows = product.num_tokens,
                           .y = static_cast<std::byte*>(product.y) + offset,
                           .y_stride = is_whole ? 0 : product.weight.out_features,
                           .y_dtype = product.y_dtype,
                           .bias = bias == nullptr ? nullptr : bias + weight.first,
                           .accumulate = product.accumulate},
                          stream);
}

// By the codes where the device has a kernel, or else by weights that are widened, a part of the
// matrix at a time.
Status MultiplyInts(const QuantizedProduct& product, MatrixLibrary& library, const Stream& stream) {
  if (!library.widens_weights()) {
    const DeviceBuffer& scratch = library.scratch();
    std::span<float> part_sums;
    if (!library.batch_invariant())
      part_sums = {scratch.as<float>(), scratch.size_bytes() / sizeof(float)};
    const Result<bool> is_done = MultiplyCodes(product, stream, part_sums);
    if (!is_done.ok() || *is_done) return is_done.status();
  }
  const QuantizedMatrix& weight = product.weight;
  const size_t row_bytes = static_cast<size_t>(weight.in_features) * sizeof(BFloat16);
  const size_t wide_bytes = NeedsSums(product) ? library.scratch().size_bytes() / 512 * 256
                                               : library.scratch().size_bytes();
  const int rows_at_once = static_cast<int>(wide_bytes / row_bytes) / kTileRows * kTileRows;
  DS_CHECK(rows_at_once > 0, "the library has scratch memory for quantised weights");
  auto* const wide = library.scratch().as<std::byte>();
  const Scratch rest = {wide + wide_bytes, library.scratch().size_bytes() - wide_bytes};
  for (int first = 0; first < weight.out_features; first += rows_at_once) {
    const int rows = std::min(rows_at_once, weight.out_features - first);
    DS_RETURN_IF_ERROR(
        WidenWeights(weight, first, rows, reinterpret_cast<BFloat16*>(wide), stream));
    DS_RETURN_IF_ERROR(MultiplyWide(product, {wide, first, rows}, rest, library, stream));
  }
  return Status();
}

// Where a product's intermediate results lie in the scratch memory. The sizes do not depend on the
// number of tokens, so neither do a token's bits.
struct Fp8Scratch {
  static constexpr int kFeatures = 4096;  // of sums at a time

  explicit Fp8Scratch(const DeviceBuffer& memory, int in_features) {
    const size_t token_bytes = static_cast<size_t>(Fp8Padded(in_features)) + sizeof(float) +
                               kFeatures * sizeof(float);
    tokens = static_cast<int>(memory.size_bytes() / token_bytes) / 4 * 4;
    codes = memory.as<uint8_t>();
    scale = reinterpret_cast<float*>(codes + static_cast<size_t>(tokens) *
                                                 static_cast<size_t>(Fp8Padded(in_features)));
    sums = scale + tokens;
  }
  int tokens = 0;  // at a time
  uint8_t* codes;  // [tokens, Fp8Padded(in_features)]
  float* scale;    // [tokens]
  float* sums;     // [tokens, up to kFeatures]
};

// cuBLASLt scales the sums and writes y.
Status MultiplyScaledFp8(const QuantizedProduct& whole, MatrixLibrary& library,
                         const Stream& stream) {
  constexpr size_t kRows = 128;  // of a product's x_scale
  const QuantizedMatrix& weight = whole.weight;
  const int in_features = Fp8Padded(weight.in_features);
  const size_t token_bytes = static_cast<size_t>(in_features) + sizeof(float);
  const DeviceBuffer& scratch = library.scratch();
  DS_CHECK(scratch.size_bytes() >= kRows * token_bytes,
           "the library has scratch memory for fp8 activations");
  const size_t tokens = scratch.size_bytes() / token_bytes / kRows * kRows;
  auto* const codes = scratch.as<uint8_t>();
  auto* const scale = reinterpret_cast<float*>(codes + tokens * static_cast<size_t>(in_features));
  for (int begin = 0; begin < whole.num_tokens; begin += static_cast<int>(tokens)) {
    const QuantizedProduct product = whole.Tokens(begin, static_cast<int>(tokens));
    DS_RETURN_IF_ERROR(QuantizeToFp8(product, codes, scale, stream));
    DS_RETURN_IF_ERROR(library.Multiply({.input_dtype = DType::kFp8E4M3,
                                         .weight = weight.codes,
                                         .in_features = in_features,
                                         .out_features = weight.out_features,
                                         .x = codes,
                                         .x_stride = in_features,
                                         .num_rows = product.num_tokens,
                                         .y = product.y,
                                         .y_dtype = product.y_dtype,
                                         .accumulate = product.accumulate,
                                         .weight_scale = weight.scale,
                                         .x_scale = scale},
                                        stream));
  }
  return Status();
}

Status MultiplyFp8(const QuantizedProduct& whole, MatrixLibrary& library, const Stream& stream) {
  const QuantizedMatrix& weight = whole.weight;
  const bool is_padded = weight.out_features != Fp8Padded(weight.out_features);
  if (library.scales_rows() && !is_padded && whole.bias == nullptr && !NeedsSums(whole))
    return MultiplyScaledFp8(whole, library, stream);
  const Fp8Scratch scratch(library.scratch(), weight.in_features);
  DS_CHECK(scratch.tokens > 0, "the library has scratch memory for fp8 weights");
  const int in_features = Fp8Padded(weight.in_features);
  for (int begin = 0; begin < whole.num_tokens; begin += scratch.tokens) {
    const QuantizedProduct product = whole.Tokens(begin, scratch.tokens);
    DS_RETURN_IF_ERROR(QuantizeToFp8(product, scratch.codes, scratch.scale, stream));
    for (int first = 0; first < weight.out_features; first += Fp8Scratch::kFeatures) {
      const int features = std::min(Fp8Scratch::kFeatures, weight.out_features - first);
      DS_RETURN_IF_ERROR(library.Multiply(
          {.input_dtype = DType::kFp8E4M3,
           .weight = static_cast<const uint8_t*>(weight.codes) + int64_t{first} * in_features,
           .in_features = in_features,
           .out_features = Fp8Padded(features),
           .x = scratch.codes,
           .x_stride = in_features,
           .num_rows = product.num_tokens,
           .y = scratch.sums,
           .y_dtype = DType::kFloat32},
          stream));
      DS_RETURN_IF_ERROR(FinishSums(product,
                                    {.sums = scratch.sums,
                                     .token_scale = scratch.scale,
                                     .first = first,
                                     .num_features = features,
                                     .stride = Fp8Padded(features)},
                                    stream));
    }
  }
  return Status();
}

void CheckOutput(const PackedLinear& weight, DType y_dtype) {
  const bool wants_float32 = weight.output() == LinearOutput::kFloat32;
  DS_CHECK(wants_float32 == (y_dtype == DType::kFloat32),
           "y has the type that the weight was packed for");
}

FewRowsAhead AheadOf(const FewRowsUse& use) {
  const FewRowsNext& next = use.next;
  if (next.weight == nullptr) return {};
  return use.few_rows.AheadOf({.format = next.weight->format(),
                               .weight = next.weight->weight(),
                               .in_features = next.weight->in_features(),
                               .out_features = next.weight->out_features(),
                               .norm = next.norm,
                               .poly = next.poly,
                               .num_tokens = next.num_tokens,
                               .form = next.form,
                               .pairs = next.pairs});
}

template <typename Y>
FewRowsProduct FewRowsOf(const PackedLinear& weight, const LinearArgs<BFloat16, Y>& args,
                         DType y_dtype, const FewRowsUse& use) {
  CheckOutput(weight, y_dtype);
  DS_CHECK(TakesFewRows(weight), "few-row products have kernels for the weights");
  DS_CHECK(args.XStride(weight.in_features()) % 8 == 0, "rows of x are aligned");
  return {.format = weight.format(),
          .weight = weight.weight(),
          .scale = weight.matrix().scale,
          .in_features = weight.in_features(),
          .out_features = weight.out_features(),
          .x = args.x,
          .x_stride = args.XStride(weight.in_features()),
          .norm = use.norm,
          .poly = use.poly,
          .num_tokens = args.num_tokens,
          .y = args.y,
          .y_dtype = y_dtype,
          .bias = weight.bias(),
          .accumulate = args.accumulate,
          .follows_kernel = use.follows_kernel,
          .ahead = AheadOf(use)};
}

template <typename Y>
Status Multiply(const PackedLinear& weight, const LinearArgs<BFloat16, Y>& args, DType y_dtype,
                MatrixLibrary& library, const Stream& stream) {
  CheckOutput(weight, y_dtype);
  const QuantizedProduct product = {.weight = weight.matrix(),
                                    .x = args.x,
                                    .x_stride = args.XStride(weight.in_features()),
                                    .num_tokens = args.num_tokens,
                                    .y = args.y,
                                    .y_dtype = y_dtype,
                                    .bias = weight.bias(),
                                    .accumulate = args.accumulate};
  if (weight.format() == WeightFormat::kFp8E4M3) return MultiplyFp8(product, library, stream);
  if (IsQuantized(weight.format())) return MultiplyInts(product, library, stream);
  const DeviceBuffer& scratch = library.scratch();
  return MultiplyWide(product, {product.weight.codes, 0, weight.out_features()},
                      {scratch.as<std::byte>(), scratch.size_bytes()}, library, stream);
}

}  // namespace

Status Linear(const PackedLinear& weight, const LinearArgs<BFloat16>& args, MatrixLibrary& library,
              const Stream& stream) {
  return Multiply(weight, args, DType::kBFloat16, library, stream);
}

Status Linear(const PackedLinear& weight, const LinearArgs<BFloat16, float>& args,
              MatrixLibrary& library, const Stream& stream) {
  return Multiply(weight, args, DType::kFloat32, library, stream);
}

bool TakesFewRows(const PackedLinear& weight) { return weight.in_features() % 8 == 0; }

int FewRowsAtBest(const PackedLinear& weight, const FewRows& few_rows) {
  if (!TakesFewRows(weight) || weight.format() == WeightFormat::kBFloat16) return 0;
  const bool widens = weight.format() != WeightFormat::kFp8E4M3 &&
                      few_rows.compute_capability() / 10 != kHopperComputeCapability / 10;
  return widens ? 2 * kFewRowsTileMax : kFewRowsTileMax;
}

Status LinearFewRows(const PackedLinear& weight, const LinearArgs<BFloat16>& args,
                     const FewRowsUse& use, const Stream& stream) {
  return use.few_rows.Multiply(FewRowsOf(weight, args, DType::kBFloat16, use), stream);
}

Status LinearFewRows(const PackedLinear& weight, const LinearArgs<BFloat16, float>& args,
                     const FewRowsUse& use, const Stream& stream) {
  return use.few_rows.Multiply(FewRowsOf(weight, args, DType::kFloat32, use), stream);
}

Status LinearAppendFewRows(const PackedLinear& weight, const LinearArgs<BFloat16>& args,
                           const RopeAppendArgs<BFloat16>& append, const FewRowsUse& use,
                           const Stream& stream) {
  DS_CHECK(weight.out_features() == append.width(), "the product is q, k and v of the batch");
  DS_CHECK(!append.has_kv || FewRowsAppendTo(append.kv.format.codec.dtype),
           "few-row products append to the pages");
  FewRowsProduct product = FewRowsOf(weight, args, DType::kBFloat16, use);
  product.form = FewRowsForm::kAppend;
  product.pairs = FewRowsPairs::Of(append);
  product.append = &append;
  return use.few_rows.Multiply(product, stream);
}

Status LinearSiluMulFewRows(const PackedLinear& weight, const LinearArgs<BFloat16>& args,
                            const FewRowsUse& use, const Stream& stream) {
  FewRowsProduct product = FewRowsOf(weight, args, DType::kBFloat16, use);
  product.form = FewRowsForm::kSiluMul;
  return use.few_rows.Multiply(product, stream);
}

}  // namespace diffserve::cuda
