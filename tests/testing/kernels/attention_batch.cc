// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/kernels/attention_batch.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/attention/attention_window.h"
#include "kernels/attention/hadamard.h"
#include "kernels/attention/int8_row.h"

namespace diffserve::testing {

std::string Describe(const DiffSpec& spec) {
  return std::to_string(spec.num_q1_heads) + "+" + std::to_string(spec.num_q2_heads) + " heads, " +
         std::to_string(spec.num_kv_groups) + " groups, " + std::to_string(spec.k_maps) +
         " K maps, head_dim " + std::to_string(spec.head_dim) + ", v_dim " +
         std::to_string(spec.v_dim);
}

void TransformHeads(std::vector<float>& numbers, int head_dim) {
  std::vector<float> scratch(static_cast<size_t>(head_dim));
  for (size_t begin = 0; begin < numbers.size(); begin += scratch.size())
    Hadamard(numbers.data() + begin, head_dim, scratch.data());
}

AttentionBatch::AttentionBatch(const DiffSpec& spec, const std::vector<SequenceShape>& shapes,
                               const AttentionBatchOptions& options)
    : spec(spec),
      memory(options.format, shapes, options.page_seed),
      window(options.window),
      options_(options),
      scale_(1.0f / std::sqrt(static_cast<float>(spec.head_dim))) {
  if (options_.names.empty()) {
    options_.names.resize(shapes.size());
    std::iota(options_.names.begin(), options_.names.end(), 0u);
  }
  for (size_t i = 0; i < shapes.size(); ++i) {
    const uint32_t seed = options.seed + 1000 * options_.names[i];
    FillKv(i, shapes[i].position + shapes[i].num_tokens, seed);
    FillRows(shapes[i], seed);
  }
  if (spec.sub_norm == SubNorm::kAffine)
    weight = RandomFloats(static_cast<size_t>(spec.v_dim), options.seed + 19, 0.5f, 1.5f);
  if (options.exact_q) MakeQExact();
}

void AttentionBatch::SetKRow(size_t sequence, int group, int slot, int map,
                             std::span<const float> k) {
  const KvFormat& format = memory.format();
  diffserve::SetK(format, PageOf(sequence, group, slot), map, slot % format.page_size, k);
}

void AttentionBatch::SetVRow(size_t sequence, int group, int slot, std::span<const float> v) {
  const KvFormat& format = memory.format();
  diffserve::SetV(format, PageOf(sequence, group, slot), slot % format.page_size, v);
}

void AttentionBatch::SetK(size_t sequence, int group, int slot, int map, int dim, float value) {
  const KvFormat& format = memory.format();
  const std::vector<double> before = KRow(format, PageOf(sequence, group, slot), map,
                                          slot % format.page_size);
  std::vector<float> row(before.begin(), before.end());
  row[static_cast<size_t>(dim)] = value;
  SetKRow(sequence, group, slot, map, row);
}

void AttentionBatch::MakeLogitsExact() {
  scale_ = 0.125f;
  const KvCodec& codec = memory.format().codec;
  const bool has_scales = codec.scale_bits > 0;
  for (float& value : q) value = std::nearbyint(1.5f * value);
  for (size_t i = 0; i < q.size() && has_scales; i += static_cast<size_t>(spec.head_dim)) {
    q[i] = 0;
    if (codec.has_int8_k()) q[i + 1] = Int8Codec::kMaxCode;  // a scale of 1 here too
  }
  for (size_t sequence = 0; sequence < memory.sequences().size(); ++sequence) {
    const SequenceTokens& rows = memory.sequences()[sequence];
    for (int slot = 0; slot < rows.position + rows.num_tokens; ++slot) {
      for (int row = 0; row < spec.num_kv_groups * spec.k_maps; ++row) {
        std::vector<float> k;
        for (int d = 0; d < spec.head_dim; ++d) {
          const int i = row * spec.head_dim + d;
          k.push_back(static_cast<float>((slot * 7 + i * 5 + slot * i % 13) % 5 - 2));
        }
        if (has_scales) {  // a scale of 1, by what meets a q of 0
          k.front() = codec.dtype == DType::kFp8E4M3 ? kFp8E4M3Max : Int8Codec::kMaxCode;
        }
        if (codec.has_int8_k()) k[1] = 0;
        if (codec.transforms_k()) {
          k[0] = FourBits::kMaxCode - 2;  // the like of four bits, with the least
          k[1] = -2;
          TransformHeads(k, spec.head_dim);
        }
        SetKRow(sequence, row / spec.k_maps, slot, row % spec.k_maps, k);
      }
    }
  }
  if (codec.transforms_k()) TransformHeads(q, spec.head_dim);
}

void AttentionBatch::MakeQExact() {
  const size_t head_dim = static_cast<size_t>(spec.head_dim);
  const size_t num_heads = static_cast<size_t>(spec.num_q1_heads + spec.num_q2_heads);
  for (size_t i = 0; i < q.size(); ++i) {
    const bool is_largest = i % head_dim == i / head_dim % num_heads % head_dim;
    q[i] = is_largest ? 127.0f / 64 : std::nearbyint(q[i] * 63) / 64;
  }
  if (memory.format().codec.transforms_k()) TransformHeads(q, spec.head_dim);
}

void AttentionBatch::ForgetPagesBehindWindow() {
  for (size_t i = 0; i < memory.sequences().size(); ++i) {
    const int first = FirstSlotSeen(memory.sequences()[i].position, WindowSlots(window));
    memory.ForgetPages(i, first / memory.format().page_size);
  }
}

std::vector<float> AttentionBatch::RoundedQ() const {
  std::vector<float> rounded = q;
  if (activations() == DType::kFloat32 || !memory.format().codec.has_int8_k()) return rounded;
  const auto head_dim = static_cast<std::ptrdiff_t>(spec.head_dim);
  for (auto row = rounded.begin(); row != rounded.end(); row += head_dim) {
    const auto [least, most] = std::minmax_element(row, row + head_dim);
    const Int8Row codes = Int8Row::Of(std::max(*most, -*least), 0);
    std::transform(row, row + head_dim, row, [&](float value) {
      return static_cast<float>(codes.CodeOf(value)) * codes.scale;
    });
  }
  return rounded;
}

DiffAttentionArgs<float> AttentionBatch::Args(std::vector<float>& out) {
  out.assign(static_cast<size_t>(num_tokens()) * static_cast<size_t>(spec.out_width()), -77.0f);
  return {.spec = spec,
          .batch = memory.sequences(),
          .kv = memory.kv(),
          .q = q.data(),
          .out = out.data(),
          .scale = scale(),
          .lambda = lambda,
          .lambda_rows = lambda_rows.empty() ? nullptr : lambda_rows.data(),
          .sub_norm_weight = weight.empty() ? nullptr : weight.data(),
          .out_scale = out_scale,
          .window = window,
          .logit_quant = logit_quant};
}

std::vector<float> AttentionBatch::Reference() {
  std::vector<float> out;
  DiffAttentionArgs<float> args = Args(out);
  const std::vector<float> rounded_q = RoundedQ();
  args.q = rounded_q.data();
  DiffAttentionRef(args);
  return out;
}

void AttentionBatch::DropSecondMap() {
  std::vector<float> q1;
  const std::ptrdiff_t width = spec.q_width();
  for (int row = 0; row < num_tokens(); ++row)
    q1.insert(q1.end(), q.begin() + row * width, q.begin() + row * width + width / 2);
  q = q1;
  spec.num_q2_heads = 0;
  spec.lambda_kind = LambdaKind::kNone;
}

std::byte* AttentionBatch::PageOf(size_t sequence, int group, int slot) {
  const SequenceTokens& rows = memory.sequences()[sequence];
  return memory.kv().Page(rows.pages[slot / memory.format().page_size], group);
}

std::vector<float> AttentionBatch::Floats(int count, uint32_t seed, float low, float high) const {
  std::vector<float> values = RandomFloats(static_cast<size_t>(count), seed, low, high);
  if (activations() == DType::kBFloat16) {
    for (float& value : values) value = BFloat16ToFloat(FloatToBFloat16(value));
  }
  return values;
}

void AttentionBatch::FillKv(size_t sequence, int length, uint32_t seed) {
  const std::vector<float> kv = Floats(length * (spec.k_width() + spec.v_width()), seed, -1, 1);
  std::span<const float> left = kv;
  const auto take = [&](int count) {
    const std::span<const float> row = left.first(static_cast<size_t>(count));
    left = left.subspan(row.size());
    return row;
  };
  for (int slot = 0; slot < length; ++slot) {
    for (int group = 0; group < spec.num_kv_groups; ++group) {
      for (int map = 0; map < spec.k_maps; ++map)
        SetKRow(sequence, group, slot, map, take(spec.head_dim));
      SetVRow(sequence, group, slot, take(spec.v_dim));
    }
  }
}

void AttentionBatch::FillRows(const SequenceShape& shape, uint32_t seed) {
  for (int row = 0; row < shape.num_tokens; ++row) {
    const uint32_t row_seed = seed + 17 + 31 * static_cast<uint32_t>(shape.position + row);
    const std::vector<float> row_q = Floats(spec.q_width(), row_seed, -2, 2);
    q.insert(q.end(), row_q.begin(), row_q.end());
    if (spec.lambda_kind != LambdaKind::kPerTokenHead) continue;
    const std::vector<float> row_lambda = RandomFloats(static_cast<size_t>(spec.num_q1_heads),
                                                       row_seed + 7, 0.0f, 1.0f);
    lambda_rows.insert(lambda_rows.end(), row_lambda.begin(), row_lambda.end());
  }
}

}  // namespace diffserve::testing
