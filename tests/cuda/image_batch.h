// A batch over image pages for the CUDA kernels, and the same batch for the double-precision
// reference. Pages lie in shuffled places, every slot that no token was written to holds NaNs, page
// ids behind a sequence's last are huge, and every array on the device ends where its allocation
// ends.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "kernels/attention/diff_attention.h"
#include "kernels/attention/diff_attention_cuda.h"
#include "tests/cuda/device_array.h"
#include "tests/testing/kernel_levels.h"

namespace diffserve::testing {

struct ImageShape {
  int position;  // of its first row in the batch
  int num_rows;
};

inline std::vector<float> BFloat16Floats(size_t count, uint32_t seed, float low = -1.0f,
                                         float high = 1.0f) {
  std::vector<float> values = RandomFloats(count, seed, low, high);
  for (float& value : values) value = BFloat16ToFloat(FloatToBFloat16(value));
  return values;
}

inline std::vector<uint16_t> ToBFloat16(const std::vector<float>& values) {
  std::vector<uint16_t> bits(values.size());
  for (size_t i = 0; i < values.size(); ++i) bits[i] = FloatToBFloat16(values[i]);
  return bits;
}

inline std::vector<float> ToFloats(const std::vector<uint16_t>& bits) {
  std::vector<float> values(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) values[i] = BFloat16ToFloat(bits[i]);
  return values;
}

inline uint16_t* Bits(const PagedKv& kv, int32_t id, int group) {
  return reinterpret_cast<uint16_t*>(kv.Page(id, group));
}

class ImageBatch {
 public:
  // A sequence's K and V depend on `seed` and its number in `names` only (its index if there are
  // none).
  ImageBatch(const DiffSpec& spec, const std::vector<ImageShape>& shapes, uint32_t seed = 1,
             uint32_t page_seed = 1, std::vector<uint32_t> names = {})
      : spec(spec), image_(cuda::ImageFormat(spec)) {
    if (names.empty()) {
      names.resize(shapes.size());
      std::iota(names.begin(), names.end(), 0u);
    }
    PlacePages(shapes, page_seed);
    for (size_t i = 0; i < shapes.size(); ++i) {
      const int length = shapes[i].position + shapes[i].num_rows;
      const size_t per_token = static_cast<size_t>(spec.k_width() + spec.v_width());
      const std::vector<float> kv = BFloat16Floats(static_cast<size_t>(length) * per_token,
                                                   seed + 1000 * names[i]);
      size_t next = 0;
      for (int slot = 0; slot < length; ++slot) {
        for (int group = 0; group < spec.num_kv_groups; ++group) {
          for (int map = 0; map < spec.k_maps; ++map) {
            for (int d = 0; d < spec.head_dim; ++d) SetK(i, group, slot, map, d, kv[next++]);
          }
          for (int d = 0; d < spec.v_dim; ++d) SetV(i, group, slot, d, kv[next++]);
        }
      }
      FillRows(shapes[i], seed + 1000 * names[i]);
    }
    if (spec.sub_norm == SubNorm::kAffine)
      weight = RandomFloats(static_cast<size_t>(spec.v_dim), seed + 19, 0.5f, 1.5f);
  }

  void SetK(size_t sequence, int group, int slot, int map, int dim, float value) {
    for (const PagedKv& kv : {Image(), ReferenceLayer()}) {
      SetKvValue(kv.format, kv.Page(PageId(sequence, slot), group),
                 kv.format.KOffset(map, dim, slot % image_.page_size), value);
    }
  }
  void SetV(size_t sequence, int group, int slot, int dim, float value) {
    for (const PagedKv& kv : {Image(), ReferenceLayer()}) {
      SetKvValue(kv.format, kv.Page(PageId(sequence, slot), group),
                 kv.format.VOffset(dim, slot % image_.page_size), value);
    }
  }

  // The host's side: kernels get a DeviceBatch.
  PagedKv Image() { return {reinterpret_cast<std::byte*>(image_pages_.data()), image_}; }
  PagedKv ReferenceLayer() {
    return {reinterpret_cast<std::byte*>(reference_pages_.data()),
            KvFormat::Of(spec, image_.page_size, DType::kBFloat16)};
  }
  cuda::PagedBatch Batch() const {
    return {static_cast<int>(sequences.size()), num_rows(), sequences.data(), row_sequences_.data(),
            pages_.data()};
  }
  int num_rows() const { return static_cast<int>(row_sequences_.size()); }
  int rows_per_sequence_max() const {
    int rows = 0;
    for (const cuda::DeviceSequence& sequence : sequences) rows = std::max(rows, sequence.num_rows);
    return rows;
  }
  std::vector<SequenceRows> ReferenceSequences() const {
    std::vector<SequenceRows> rows;
    for (const cuda::DeviceSequence& sequence : sequences) {
      rows.push_back({sequence.first_row, sequence.num_rows, sequence.position,
                      pages_.data() + sequence.first_page});
    }
    return rows;
  }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(spec.head_dim)); }

  std::vector<float> Reference() {
    std::vector<float> out(static_cast<size_t>(num_rows()) * static_cast<size_t>(spec.out_width()));
    const std::vector<SequenceRows> rows = ReferenceSequences();
    DiffAttentionRef({.spec = spec,
                      .sequences = rows,
                      .kv = ReferenceLayer(),
                      .q = q.data(),
                      .out = out.data(),
                      .scale = scale(),
                      .lambda = lambda,
                      .lambda_rows = lambda_rows.empty() ? nullptr : lambda_rows.data(),
                      .sub_norm_weight = weight.empty() ? nullptr : weight.data(),
                      .out_scale = out_scale});
    return out;
  }

  using Launcher = int (*)(const cuda::DiffAttentionArgs&, CUstream_st*);

  // The kernels, plan included. A kernel's fault is a test's failure.
  std::vector<float> Decode(bool bulk_copies = true) {
    return Launch(cuda::DiffDecodeTiling(spec, rows_per_sequence_max()), cuda::DiffDecode,
                  bulk_copies);
  }
  std::vector<float> Prefill(bool bulk_copies = true) {
    return Launch(cuda::DiffPrefillTiling(spec, bulk_copies), cuda::DiffPrefill, bulk_copies);
  }
  std::vector<float> Launch(const cuda::AttentionTiling& tiling, Launcher launch, bool bulk_copies);

  DiffSpec spec;
  std::vector<cuda::DeviceSequence> sequences;
  std::vector<float> q;            // [rows, q_width], bf16 values
  std::vector<float> lambda_rows;  // [rows, num_q1_heads]
  std::vector<float> weight;       // [v_dim]
  float lambda = 0.35f;
  float out_scale = 0.8f;

 private:
  int PagesOf(int length) const { return (length + image_.page_size - 1) / image_.page_size; }
  int32_t PageId(size_t sequence, int slot) const {
    return pages_[static_cast<size_t>(sequences[sequence].first_page + slot / image_.page_size)];
  }

  void PlacePages(const std::vector<ImageShape>& shapes, uint32_t page_seed) {
    int num_pages = 1;
    for (const ImageShape& shape : shapes) num_pages += PagesOf(shape.position + shape.num_rows);
    std::vector<int32_t> ids(static_cast<size_t>(num_pages));
    std::iota(ids.begin(), ids.end(), 0);
    std::mt19937 generator(page_seed);
    std::shuffle(ids.begin(), ids.end(), generator);
    const size_t elements = static_cast<size_t>(num_pages) *
                            static_cast<size_t>(spec.num_kv_groups) *
                            static_cast<size_t>(image_.PageElements());
    image_pages_.assign(elements, 0xffff);
    reference_pages_.assign(elements, 0xffff);
    for (const ImageShape& shape : shapes) {
      sequences.push_back(
          {num_rows(), shape.num_rows, shape.position, static_cast<int32_t>(pages_.size())});
      for (int page = 0; page < PagesOf(shape.position + shape.num_rows); ++page) {
        pages_.push_back(ids.back());
        ids.pop_back();
      }
      pages_.insert(pages_.end(), 2, 2147480000);
      row_sequences_.insert(row_sequences_.end(), static_cast<size_t>(shape.num_rows),
                            static_cast<int32_t>(sequences.size()) - 1);
    }
  }

  // q and lambda of a row depend on its position, not on the chunk it came in.
  void FillRows(const ImageShape& shape, uint32_t seed) {
    for (int row = 0; row < shape.num_rows; ++row) {
      const uint32_t row_seed = seed + 17 + 31 * static_cast<uint32_t>(shape.position + row);
      const std::vector<float> row_q = BFloat16Floats(static_cast<size_t>(spec.q_width()), row_seed,
                                                      -2.0f, 2.0f);
      q.insert(q.end(), row_q.begin(), row_q.end());
      if (spec.lambda_kind != LambdaKind::kPerTokenHead) continue;
      const std::vector<float> row_lambda = RandomFloats(static_cast<size_t>(spec.num_q1_heads),
                                                         row_seed + 7, 0.0f, 1.0f);
      lambda_rows.insert(lambda_rows.end(), row_lambda.begin(), row_lambda.end());
    }
  }

  friend class DeviceBatch;
  KvFormat image_;
  std::vector<uint16_t> image_pages_;
  std::vector<uint16_t> reference_pages_;
  std::vector<int32_t> pages_;
  std::vector<int32_t> row_sequences_;
};

// The batch's pages and tables on the device. With `pages_before`, as many pages of arbitrary
// content lie before those of the batch, which have higher ids then.
class DeviceBatch {
 public:
  DeviceBatch(const ImageBatch& batch, const cuda::Stream& stream, int32_t pages_before = 0)
      : image_(batch.image_),
        sequences_(batch.sequences, stream),
        row_sequences_(batch.row_sequences_, stream),
        pages_(ShiftedPages(batch.pages_, pages_before), stream),
        elements_before_(static_cast<size_t>(pages_before) *
                         static_cast<size_t>(image_.num_groups) *
                         static_cast<size_t>(image_.PageElements())),
        image_pages_(batch.image_pages_, stream, elements_before_) {}

  PagedKv Image() const {
    return {reinterpret_cast<std::byte*>(image_pages_.data() - elements_before_), image_};
  }
  cuda::PagedBatch Batch() const {
    return {static_cast<int>(sequences_.size()), static_cast<int>(row_sequences_.size()),
            sequences_.data(), row_sequences_.data(), pages_.data()};
  }
  // What kernels wrote into the pages comes back into `batch`.
  void ReadPages(ImageBatch& batch, const cuda::Stream& stream) const {
    batch.image_pages_ = image_pages_.Read(stream);
  }

 private:
  static std::vector<int32_t> ShiftedPages(std::vector<int32_t> pages, int32_t pages_before) {
    for (int32_t& page : pages)
      page = static_cast<int32_t>(std::min<int64_t>(int64_t{page} + pages_before, 2147480000));
    return pages;
  }

  KvFormat image_;
  DeviceArray<cuda::DeviceSequence> sequences_;
  DeviceArray<int32_t> row_sequences_;
  DeviceArray<int32_t> pages_;
  size_t elements_before_;
  DeviceArray<uint16_t> image_pages_;
};

// Everything that one attention call needs on the device, planned; the kernels may then be queued
// any number of times.
class AttentionRun {
 public:
  AttentionRun(const ImageBatch& batch, const cuda::AttentionTiling& tiling,
               const cuda::Stream& stream, int32_t pages_before = 0)
      : stream_(stream),
        batch_(batch, stream, pages_before),
        q_(ToBFloat16(batch.q), stream),
        lambda_rows_(batch.lambda_rows, stream),
        weight_(batch.weight, stream),
        out_(std::vector<uint16_t>(static_cast<size_t>(batch.num_rows()) *
                                       static_cast<size_t>(batch.spec.out_width()),
                                   0x4e4e),
             stream),
        items_(std::vector<cuda::AttentionItem>(static_cast<size_t>(ItemsMax(batch, tiling))),
               stream),
        first_item_(std::vector<int32_t>(batch.sequences.size() + 1), stream),
        num_items_(std::vector<int32_t>(1), stream) {
    args_ = {.spec = batch.spec,
             .batch = batch_.Batch(),
             .kv = batch_.Image(),
             .q = q_.data(),
             .out = out_.data(),
             .scale = batch.scale(),
             .lambda = batch.lambda,
             .lambda_rows = lambda_rows_.data(),
             .sub_norm_weight = weight_.data(),
             .out_scale = batch.out_scale,
             .tiling = tiling,
             .plan = {num_items_.data(), items_.data(), first_item_.data(),
                      static_cast<int>(items_.size())},
             .partials = nullptr,
             .allow_bulk_copies = true};
    QueuePlan();
    const int32_t num_items = num_items_.Read(stream)[0];
    partials_.emplace(
        std::vector<float>(cuda::DiffDecodePartialFloats(batch.spec, tiling, num_items),
                           std::numeric_limits<float>::quiet_NaN()),
        stream);
    args_.partials = partials_->data();
  }

  void QueuePlan() {
    EXPECT_TRUE(
        IsOk(cuda::PlanDiffAttention(args_.tiling, args_.batch, args_.plan, stream_.handle())));
  }
  void Queue(ImageBatch::Launcher launch, bool bulk_copies = true) {
    args_.allow_bulk_copies = bulk_copies;
    EXPECT_TRUE(IsOk(launch(args_, stream_.handle())));
  }
  std::vector<uint16_t> Out() const { return out_.Read(stream_); }
  void PoisonOut() const { out_.Write(std::vector<uint16_t>(out_.size(), 0x4e4e), stream_); }

 private:
  static int64_t ItemsMax(const ImageBatch& batch, const cuda::AttentionTiling& tiling) {
    int64_t num_slots = 0;
    for (const cuda::DeviceSequence& sequence : batch.sequences)
      num_slots += sequence.position + sequence.num_rows;
    return cuda::AttentionItemsMax(tiling, batch.rows_per_sequence_max(),
                                   static_cast<int>(batch.sequences.size()), num_slots);
  }

  const cuda::Stream& stream_;
  DeviceBatch batch_;
  DeviceArray<uint16_t> q_;
  DeviceArray<float> lambda_rows_;
  DeviceArray<float> weight_;
  DeviceArray<uint16_t> out_;
  DeviceArray<cuda::AttentionItem> items_;
  DeviceArray<int32_t> first_item_;
  DeviceArray<int32_t> num_items_;
  std::optional<DeviceArray<float>> partials_;
  cuda::DiffAttentionArgs args_;
};

inline std::vector<float> ImageBatch::Launch(const cuda::AttentionTiling& tiling, Launcher launch,
                                             bool bulk_copies) {
  const cuda::Stream stream = cuda::Stream::Create().value();
  AttentionRun run(*this, tiling, stream);
  run.Queue(launch, bulk_copies);
  return ToFloats(run.Out());
}

}  // namespace diffserve::testing
