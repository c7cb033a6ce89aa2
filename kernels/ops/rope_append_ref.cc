// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/ops/rope_append.h"
#include "kernels/process/check.h"

namespace diffserve {

RopeTable::RopeTable(std::span<const double> inv_freq, int max_positions, double attention_factor)
    : half_dim_(static_cast<int>(inv_freq.size())), max_positions_(max_positions) {
  const size_t count = static_cast<size_t>(max_positions) * inv_freq.size();
  cos_.resize(count);
  sin_.resize(count);
  for (int position = 0; position < max_positions; ++position) {
    for (size_t i = 0; i < inv_freq.size(); ++i) {
      const double angle = static_cast<float>(position * inv_freq[i]);
      const size_t at = static_cast<size_t>(position) * inv_freq.size() + i;
      cos_[at] = static_cast<float>(std::cos(angle) * attention_factor);
      sin_[at] = static_cast<float>(std::sin(angle) * attention_factor);
    }
  }
}

namespace {

std::vector<float> RotatedHead(const RopeAppendArgs<float>& args, const float* x, int position) {
  if (args.style == RopeStyle::kNone) return {x, x + args.spec.head_dim};
  const int half = args.rope.half_dim;
  const float* cos = args.rope.cos + int64_t{position} * half;
  const float* sin = args.rope.sin + int64_t{position} * half;
  std::vector<float> out(static_cast<size_t>(2 * half));
  for (int i = 0; i < half; ++i) {
    const int first = args.style == RopeStyle::kHalfSplit ? i : 2 * i;
    const int second = args.style == RopeStyle::kHalfSplit ? i + half : 2 * i + 1;
    const double a = x[first];
    const double b = x[second];
    out[static_cast<size_t>(first)] = static_cast<float>(a * cos[i] - b * sin[i]);
    out[static_cast<size_t>(second)] = static_cast<float>(b * cos[i] + a * sin[i]);
  }
  return out;
}

void AppendRow(const RopeAppendArgs<float>& args, const SequenceTokens& sequence, int row) {
  const DiffSpec& spec = args.spec;
  const KvFormat& format = args.kv.format;
  const int position = sequence.position + row;
  const size_t batch_row = static_cast<size_t>(sequence.first_row + row);
  const float* x = args.qkv + batch_row * static_cast<size_t>(args.width());
  float* q = args.q + batch_row * static_cast<size_t>(spec.q_width());
  for (int head = 0; head < spec.num_q1_heads + spec.num_q2_heads; ++head) {
    const std::vector<float> rotated = RotatedHead(args, x + head * spec.head_dim, position);
    for (int d = 0; d < spec.head_dim; ++d)
      q[head * spec.head_dim + d] = rotated[static_cast<size_t>(d)];
  }
  if (!args.has_kv) return;
  const int slot = position % format.page_size;
  const float* k = x + spec.q_width();
  const float* v = k + spec.k_width();
  for (int group = 0; group < spec.num_kv_groups; ++group) {
    std::byte* page = args.kv.Page(sequence.pages[position / format.page_size], group);
    for (int map = 0; map < spec.k_maps; ++map) {
      const std::vector<float> rotated = RotatedHead(
          args, k + (map * spec.num_kv_groups + group) * spec.head_dim, position);
      SetK(format, page, map, slot, rotated);
    }
    SetV(format, page, slot, {v + group * spec.v_dim, static_cast<size_t>(spec.v_dim)});
  }
}

}  // namespace

void RopeAppendRef(const RopeAppendArgs<float>& args) {
  DS_CHECK(args.style == RopeStyle::kNone || 2 * args.rope.half_dim == args.spec.head_dim,
           "the rope table's width is not the head's");
  for (const SequenceTokens& sequence : args.batch) {
    for (int row = 0; row < sequence.num_tokens; ++row) AppendRow(args, sequence, row);
  }
}

}  // namespace diffserve
