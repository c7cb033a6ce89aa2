// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/cuda_bench_prompts.h"

#include <string>
#include <vector>

#include "kernels/base/cuda/memory.h"
#include "kernels/ops/linear_quantized_cuda.h"
#include "kernels/ops/weight_codec.h"
#include "tests/bench/cuda_bench_kernels.h"

namespace diffserve::bench {
namespace {

using cuda::QuantizedProduct;

constexpr WeightFormat kFormats[] = {WeightFormat::kBFloat16, WeightFormat::kInt8,
                                     WeightFormat::kInt4};

class PromptProducts {
 public:
  PromptProducts(const FewRowsFigures& figures, int rows_max)
      : figures_(figures), stream_(figures.timer.stream()) {
    const bool smoke = figures.timer.smoke();
    const int hidden = smoke ? 128 : 3072, inner = smoke ? 192 : 8192;
    Add(hidden, 3 * hidden, DType::kBFloat16);
    Add(hidden, hidden, DType::kFloat32);
    Add(hidden, 2 * inner, DType::kBFloat16);
    Add(inner, hidden, DType::kFloat32);
    const auto widest = static_cast<size_t>(2 * inner);
    x_ = Must(cuda::DeviceBuffer::Allocate(sizeof(BFloat16) * static_cast<size_t>(rows_max) *
                                           static_cast<size_t>(inner)));
    Must(FillRandom(x_.as<uint16_t>(), rows_max, inner, 0, stream_.handle()));
    y_ = Must(cuda::DeviceBuffer::Allocate(sizeof(float) * static_cast<size_t>(rows_max) * widest));
    Must(cuda::FillBytes(y_, std::byte{0}, stream_));
    scale_ = Must(cuda::DeviceBuffer::Allocate(sizeof(float) * widest));
    Must(cuda::FillBytes(scale_, std::byte{0}, stream_));
    sums_ = Must(cuda::DeviceBuffer::Allocate(size_t{32} << 20));  // as many as the server has
  }

  // Microseconds of the four products, and speeds over bfloat16's.
  void Measure(int rows) {
    const std::string of_rows = "_rows" + std::to_string(rows);
    if (!figures_.wants("prompt_products" + of_rows)) return;
    const bool smoke = figures_.timer.smoke();
    std::vector<Work> works;
    for (const WeightFormat format : kFormats)
      works.push_back([&, format](int) { Layer(format, smoke ? 1 + rows / 64 : rows); });
    const std::vector<std::vector<double>> seconds = figures_.timer.Rounds(works);
    const double library = Median(seconds[0]);
    for (size_t i = 0; i < works.size(); ++i) {
      const std::string name = "prompt_products" + of_rows + "_" + std::string(NameOf(kFormats[i]));
      const double own = Median(seconds[i]);
      figures_.add(name + "_us", own * 1e6);
      if (i > 0) figures_.add(name + "_over_bfloat16", library / own);
    }
  }

 private:
  void Add(int in_features, int out_features, DType y_dtype) {
    constexpr int kColumns = 8;
    const size_t elements = static_cast<size_t>(in_features) * static_cast<size_t>(out_features);
    // Some bfloat16 numbers, which also serve as codes.
    weights_.push_back(Must(cuda::DeviceBuffer::Allocate(elements * sizeof(BFloat16))));
    Must(FillRandom(weights_.back().as<uint16_t>(), elements / kColumns, kColumns,
                    static_cast<int>(weights_.size()), stream_.handle()));
    products_.push_back({.weight = {.codes = weights_.back().data(),
                                    .in_features = in_features,
                                    .out_features = out_features},
                         .y_dtype = y_dtype,
                         .accumulate = y_dtype == DType::kFloat32});
  }

  void Layer(WeightFormat format, int rows) {
    for (QuantizedProduct product : products_) {
      product.weight.format = format;
      product.weight.scale = scale_.as<float>();
      product.x = x_.as<BFloat16>();
      product.x_stride = product.weight.in_features;
      product.num_tokens = rows;
      product.y = y_.data();
      if (format != WeightFormat::kBFloat16) {
        Must(cuda::MultiplyCodes(product, stream_,
                                 {sums_.as<float>(), sums_.size_bytes() / sizeof(float)}));
        continue;
      }
      Must(figures_.library->Multiply({.weight = product.weight.codes,
                                       .in_features = product.weight.in_features,
                                       .out_features = product.weight.out_features,
                                       .x = product.x,
                                       .x_stride = product.x_stride,
                                       .num_rows = rows,
                                       .y = product.y,
                                       .y_dtype = product.y_dtype,
                                       .accumulate = product.accumulate},
                                      stream_));
    }
  }

  const FewRowsFigures& figures_;
  const cuda::Stream& stream_;
  std::vector<QuantizedProduct> products_;
  std::vector<cuda::DeviceBuffer> weights_;
  cuda::DeviceBuffer x_, y_, scale_, sums_;
};

}  // namespace

void MeasurePromptProducts(const FewRowsFigures& figures) {
  const bool is_possible = Must(cuda::MultiplyCodes({}, figures.timer.stream()));
  if (!is_possible || figures.library == nullptr) return;
  PromptProducts products(figures, figures.timer.smoke() ? 129 : 8192);
  for (const int rows : {128, 256, 512, 2048, 8192}) products.Measure(rows);
}

}  // namespace diffserve::bench
