// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/cuda_bench_few_rows.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/cuda/graph.h"
#include "kernels/ops/few_rows_cuda.h"
#include "kernels/ops/weight_codec.h"
#include "tests/bench/cuda_bench_kernels.h"

namespace diffserve::bench {
namespace {

using cuda::FewRowsForm;
using cuda::FewRowsPlan;
using cuda::FewRowsProduct;

constexpr int kRowsMax = 128;

class Products {
 public:
  Products(const FewRowsFigures& figures, WeightFormat format)
      : figures_(figures),
        format_(format),
        name_(format == WeightFormat::kBFloat16 ? "few_rows_"
                                                : "few_rows_" + std::string(NameOf(format)) + "_"),
        stream_(figures.timer.stream()),
        few_rows_(Must(cuda::FewRows::Create(figures.device, size_t{128} << 20, stream_))),
        num_layers_(figures.timer.smoke() ? 1 : 4) {
    const bool smoke = figures.timer.smoke();
    const int hidden = smoke ? 128 : 3072, inner = smoke ? 192 : 8192;
    const int vocab = smoke ? 200 : 100288;
    shapes_ = {{.in_features = hidden, .out_features = 3 * hidden},
               {.in_features = hidden,
                .out_features = hidden,
                .y_dtype = DType::kFloat32,
                .accumulate = true},
               {.in_features = hidden, .out_features = 2 * inner, .form = FewRowsForm::kSiluMul},
               {.in_features = inner,
                .out_features = hidden,
                .y_dtype = DType::kFloat32,
                .accumulate = true}};
    scale_ = Must(cuda::DeviceBuffer::Allocate(sizeof(float) *
                                               static_cast<size_t>(std::max(vocab, 2 * inner))));
    Must(cuda::FillBytes(scale_, std::byte{0}, stream_));
    output_ = {.in_features = hidden, .out_features = vocab, .y_dtype = DType::kFloat32};
    for (int layer = 0; layer < num_layers_; ++layer) {
      for (const FewRowsProduct& shape : shapes_) AddWeight(shape);
    }
    AddWeight(output_);
    x_ = Must(
        cuda::DeviceBuffer::Allocate(sizeof(BFloat16) * kRowsMax * static_cast<size_t>(inner)));
    Must(FillRandom(x_.as<uint16_t>(), kRowsMax, inner, 0, stream_.handle()));
    y_ = Must(cuda::DeviceBuffer::Allocate(sizeof(float) * kRowsMax *
                                           static_cast<size_t>(std::max(vocab, 2 * inner))));
    Must(cuda::FillBytes(y_, std::byte{0}, stream_));
    Must(stream_.Synchronize());  // products that begin early may then read the weights
  }

  // Rows in the order of their figures.
  void Layers(std::initializer_list<int> of_layers) {
    for (int rows : of_layers) AddLayer(LayerName(rows), rows, {});
  }

  // The library's beside them; the next weights brought near; products that begin before the one
  // before them ends; products that thread blocks share.
  void Variants() {
    for (int rows : {1, 8, 16, 32, 64}) {
      const std::string of_rows = "layer_us_rows" + std::to_string(rows);
      if (figures_.library != nullptr && figures_.wants("library_" + of_rows))
        Add("library_" + of_rows, [&](FewRowsProduct product, int) { ByLibrary(product); }, rows);
    }
    for (int megabytes : {7, 14, 24}) {
      AddLayer(LayerName(1) + "_ahead" + std::to_string(megabytes) + "mb", 1, {}, megabytes * 1e6);
    }
    for (int rows : {1, 8, 64}) {
      AddLayer(LayerName(rows) + "_early", rows, {}, 0, /*starts_early=*/true);
      AddLayer(LayerName(rows) + "_early_ahead14mb", rows, {}, 14e6, /*starts_early=*/true);
    }
    for (int rows : {16, 32, 64}) {
      for (int splits : {1, 2, 4, 8}) {
        AddLayer(LayerName(rows) + "_splits" + std::to_string(splits), rows, splits);
      }
    }
  }

  // The share of the read probe's speed.
  void Output() {
    const std::string name = name_ + "share_rows1_out100288_in3072";
    if (!figures_.wants(name)) return;
    const FewRowsProduct product = Of(output_, weights_.size() - 1, 1);
    const FewRowsPlan plan = Must(cuda::PlanFewRows(product, few_rows_.limits()));
    const double seconds = figures_.timer.Seconds(
        [&](int) { Must(few_rows_.Multiply(product, plan, stream_)); });
    figures_.add(name,
                 static_cast<double>(Bytes(output_)) / seconds * 1e-9 / figures_.read_gb_per_s);
  }

 private:
  std::string LayerName(int rows) const { return name_ + "layer_us_rows" + std::to_string(rows); }

  size_t Bytes(FewRowsProduct shape) const {
    shape.format = format_;
    const cuda::FewRowsTiles tiles = shape.Tiles();
    return static_cast<size_t>(shape.StripBytes() * tiles.NumUnits() * tiles.StripsOfUnit());
  }

  // Some codes, if the weights are not bfloat16.
  void AddWeight(const FewRowsProduct& shape) {
    constexpr int kColumns = 8;
    const size_t bytes = Bytes(shape);
    weights_.push_back(Must(cuda::DeviceBuffer::Allocate(bytes)));
    Must(FillRandom(weights_.back().as<uint16_t>(), bytes / sizeof(BFloat16) / kColumns, kColumns,
                    static_cast<int>(weights_.size()), stream_.handle()));
  }

  FewRowsProduct Of(FewRowsProduct shape, size_t weight, int rows) const {
    shape.format = format_;
    shape.scale = scale_.as<float>();
    shape.weight = weights_[weight].as<BFloat16>();
    shape.x = x_.as<BFloat16>();
    shape.x_stride = shape.in_features;
    shape.num_tokens = rows;
    shape.y = y_.data();
    return shape;
  }

  void AddLayer(const std::string& name, int rows, std::optional<int> splits,
                double ahead_bytes = 0, bool starts_early = false) {
    if (!figures_.wants(name)) return;
    const auto plan_of = [&](const FewRowsProduct& product) {
      return Must(cuda::PlanFewRows(product, few_rows_.limits(), splits));
    };
    Add(
        name,
        [&](FewRowsProduct product, int next) {
          const FewRowsProduct after = Of(shapes_[static_cast<size_t>(next) % shapes_.size()],
                                          static_cast<size_t>(next) % (weights_.size() - 1), rows);
          product.ahead = cuda::AheadOf(after, plan_of(after), ahead_bytes);
          product.follows_kernel = starts_early && next > 1;
          Must(few_rows_.Multiply(product, plan_of(product), stream_));
        },
        rows);
  }

  void ByLibrary(const FewRowsProduct& product) {
    Must(figures_.library->Multiply({.weight = product.weight,
                                     .in_features = product.in_features,
                                     .out_features = product.out_features,
                                     .x = product.x,
                                     .x_stride = product.x_stride,
                                     .num_rows = product.num_tokens,
                                     .y = product.y,
                                     .y_dtype = product.y_dtype,
                                     .accumulate = product.accumulate},
                                    stream_));
  }

  // Microseconds of a layer's products. queue(product, index of the next one).
  template <typename Queue>
  void Add(const std::string& name, const Queue& queue, int rows) {
    const auto layers = [&] {
      for (size_t i = 0; i + 1 < weights_.size(); ++i)
        queue(Of(shapes_[i % shapes_.size()], i, rows), static_cast<int>(i) + 1);
      return Status();
    };
    Must(layers());  // cuBLASLt chooses its kernels outside the graph
    const cuda::Graph graph = Must(cuda::Graph::Capture(stream_, layers));
    figures_.add(name, figures_.timer.Seconds([&](int) { Must(graph.Launch(stream_)); }) /
                           num_layers_ * 1e6);
  }

  const FewRowsFigures& figures_;
  const WeightFormat format_;
  const std::string name_;
  const cuda::Stream& stream_;
  cuda::FewRows few_rows_;
  const int num_layers_;  // at least 0.24 GB of weights: none of them is still in the L2 cache
  std::vector<FewRowsProduct> shapes_;
  FewRowsProduct output_;
  std::vector<cuda::DeviceBuffer> weights_;  // of each layer's shapes, then of the output matrix
  cuda::DeviceBuffer x_, y_, scale_;
};

}  // namespace

void MeasureFewRows(const FewRowsFigures& figures) {
  {
    Products products(figures, WeightFormat::kBFloat16);
    products.Layers({1, 8, 16, 32, 64});
    products.Variants();
    products.Output();
  }
  for (const WeightFormat format :
       {WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kFp8E4M3}) {
    Products products(figures, format);
    products.Layers({1, 8, 16, 32, 64, 128});
    products.Output();
  }
}

}  // namespace diffserve::bench
