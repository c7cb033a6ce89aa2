// SPDX-License-Identifier: Apache-2.0
// An attention call on the device: a GPU, or the kernels' own source on the CPU shim.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "kernels/attention/attention_plan_cuda.h"
#include "kernels/attention/diff_attention.h"
#include "tests/cuda/device_pages.h"
#include "tests/testing/kernels/attention_batch.h"

namespace diffserve::testing {

inline std::vector<BFloat16> ToBFloat16(const std::vector<float>& values) {
  std::vector<BFloat16> bits(values.size());
  for (size_t i = 0; i < values.size(); ++i) bits[i] = FloatToBFloat16(values[i]);
  return bits;
}

inline std::vector<float> ToFloats(const std::vector<BFloat16>& bits) {
  std::vector<float> values(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) values[i] = BFloat16ToFloat(bits[i]);
  return values;
}

// q as RopeAppend writes it: after K's transform, if there is one.
inline std::vector<float> AppendedQ(const AttentionBatch& batch) {
  std::vector<float> q = batch.q;
  if (batch.memory.format().codec.transforms_k()) TransformHeads(q, batch.spec.head_dim);
  return q;
}

// A batch in image pages, of bfloat16 by default. q is bfloat16, as RopeAppend would write it.
class ImageBatch : public AttentionBatch {
 public:
  ImageBatch(const DiffSpec& spec, const std::vector<SequenceShape>& shapes, uint32_t seed = 1,
             uint32_t page_seed = 1, std::vector<uint32_t> names = {},
             DType dtype = DType::kBFloat16)
      : AttentionBatch(spec, shapes,
                       {.format = cuda::ImageFormat(spec, dtype),
                        .activations = DType::kBFloat16,
                        .seed = seed,
                        .page_seed = page_seed,
                        .names = std::move(names)}) {
    if (!memory.format().codec.transforms_k()) return;
    q = ToFloats(ToBFloat16(AppendedQ(*this)));
    TransformHeads(q, spec.head_dim);
  }
};

inline int RowsPerSequenceMax(const AttentionBatch& batch) {
  int rows = 0;
  for (const SequenceTokens& sequence : batch.memory.sequences())
    rows = std::max(rows, sequence.num_tokens);
  return rows;
}

// A plan on the device, after other items.
class DevicePlan {
 public:
  DevicePlan(std::span<const cuda::DeviceSequence> sequences, const cuda::AttentionTiling& tiling,
             const cuda::Stream& stream)
      : planned_(kOthers, cuda::AttentionItem{0, 1, 0, 0, 0, 1, 0, 1}) {
    cuda::PlanAttention(sequences, tiling, &planned_);
    items_.emplace(planned_, stream);
    head_.emplace(std::vector<cuda::AttentionPlanHead>{{kOthers, num_items(), 1}}, stream);
  }
  cuda::AttentionPlan plan() const { return {head_->data(), items_->data()}; }
  int num_items() const { return static_cast<int>(planned_.size()) - kOthers; }

 private:
  static constexpr int kOthers = 3;

  std::vector<cuda::AttentionItem> planned_;
  std::optional<DeviceArray<cuda::AttentionItem>> items_;
  std::optional<DeviceArray<cuda::AttentionPlanHead>> head_;
};

inline constexpr BFloat16 kUnwrittenOut = 0x4e4e;

// Everything that one call needs on the device, already planned; the kernels may then be queued any
// number of times. In padding rows, q and lambdas are NaNs. Pages of codes are widened for
// `widened_groups` at a time.
class AttentionRun {
 public:
  AttentionRun(const AttentionBatch& batch, const cuda::AttentionTiling& tiling,
               const cuda::Stream& stream, const BatchPlacement& placement = {},
               int widened_groups = 1)
      : stream_(stream),
        pages_(batch.memory, stream, placement),
        q_(ToBFloat16(WithPadding(AppendedQ(batch), batch, placement)), stream),
        lambda_rows_(WithPadding(batch.lambda_rows, batch, placement), stream),
        weight_(batch.weight, stream),
        out_(std::vector<BFloat16>(static_cast<size_t>(pages_.Batch().num_tokens) *
                                       static_cast<size_t>(batch.spec.out_width()),
                                   kUnwrittenOut),
             stream),
        plan_(pages_.sequences(), tiling, stream) {
    args_ = {.spec = batch.spec,
             .batch = pages_.Batch(),
             .kv = pages_.kv(),
             .q = q_.data(),
             .out = out_.data(),
             .scale = batch.scale(),
             .lambda = batch.lambda,
             .lambda_rows = lambda_rows_.data(),
             .sub_norm_weight = weight_.data(),
             .out_scale = batch.out_scale,
             .window = batch.window,
             .logit_quant = batch.logit_quant};
    schedule_.tiling = tiling;
    schedule_.plan = plan_.plan();
    const int num_items = plan_.num_items();
    partials_.emplace(
        std::vector<float>(cuda::DiffDecodePartialFloats(batch.spec, tiling, num_items),
                           std::numeric_limits<float>::quiet_NaN()),
        stream);
    schedule_.partials = partials_->data();
    counters_.emplace(std::vector<uint32_t>(cuda::DiffDecodeCounters(batch.spec, num_items)),
                      stream);
    schedule_.counters = counters_->data();
    extents_.emplace(
        std::vector<float>(batch.logit_quant.is_on()
                               ? cuda::DiffDecodeExtentFloats(batch.spec, tiling, num_items)
                               : 0,
                           std::numeric_limits<float>::quiet_NaN()),
        stream);
    schedule_.extents = extents_->data();
    const int num_pages = pages_.num_page_ids();
    widened_.emplace(std::vector<std::byte>(cuda::WidenedPageBytes(batch.spec) *
                                                static_cast<size_t>(widened_groups * num_pages),
                                            std::byte{0xff}),
                     stream);
    widened_ids_.emplace(std::vector<int32_t>(static_cast<size_t>(num_pages), -1), stream);
    schedule_.widened = {widened_->data(), widened_->size(), widened_ids_->data(), 0, num_pages};
  }

  void Queue(bool bulk_copies = true, bool follows_kernel = false) {
    schedule_.allow_bulk_copies = bulk_copies;
    schedule_.follows_kernel = follows_kernel;
    EXPECT_TRUE(IsOk(cuda::DiffAttention(args_, schedule_, stream_)));
  }
  std::vector<BFloat16> Out() const { return out_.Read(stream_); }
  void PoisonOut() const { out_.Write(std::vector<BFloat16>(out_.size(), kUnwrittenOut), stream_); }

 private:
  static std::vector<float> WithPadding(std::vector<float> rows, const AttentionBatch& batch,
                                        const BatchPlacement& placement) {
    if (placement.num_padded == 0) return rows;  // also for a batch without tokens
    const size_t width = rows.size() / static_cast<size_t>(batch.num_tokens());
    rows.resize(rows.size() + width * static_cast<size_t>(placement.num_padded),
                std::numeric_limits<float>::quiet_NaN());
    return rows;
  }

  const cuda::Stream& stream_;
  DevicePages pages_;
  DeviceArray<BFloat16> q_;
  DeviceArray<float> lambda_rows_;
  DeviceArray<float> weight_;
  DeviceArray<BFloat16> out_;
  DevicePlan plan_;
  std::optional<DeviceArray<float>> partials_, extents_;
  std::optional<DeviceArray<uint32_t>> counters_;
  std::optional<DeviceArray<std::byte>> widened_;
  std::optional<DeviceArray<int32_t>> widened_ids_;
  DiffAttentionArgs<BFloat16> args_;
  cuda::AttentionSchedule schedule_;
};

// Plans and runs the kernels. A kernel's fault is a test failure.
inline std::vector<float> RunAttention(const AttentionBatch& batch,
                                       const cuda::AttentionTiling& tiling, bool bulk_copies) {
  const cuda::Stream stream = cuda::Stream::Create().value();
  AttentionRun run(batch, tiling, stream);
  run.Queue(bulk_copies);
  return ToFloats(run.Out());
}
inline std::vector<float> Decode(const AttentionBatch& batch, bool bulk_copies = true) {
  return RunAttention(batch,
                      cuda::DiffDecodeTiling(batch.spec, RowsPerSequenceMax(batch), batch.window),
                      bulk_copies);
}
inline std::vector<float> Prefill(const AttentionBatch& batch, bool bulk_copies = true) {
  return RunAttention(batch, cuda::DiffPrefillTiling(batch.spec, bulk_copies, batch.window),
                      bulk_copies);
}

}  // namespace diffserve::testing
