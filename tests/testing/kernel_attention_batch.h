// A batch of sequences over a paged cache for attention tests: random q, K and V, pages in shuffled
// places, and every slot that no token was written to poisoned with NaN.
#pragma once

#include <cstring>
#include <vector>

#include "kernels/attention/diff_attention.h"
#include "kernels/base/tensor.h"
#include "tests/testing/kernel_levels.h"

namespace diffserve::testing {

struct SequenceShape {
  int position;  // of its first row in the batch
  int num_rows;
};

class AttentionBatch {
 public:
  AttentionBatch(const DiffSpec& spec, int page_size, DType dtype,
                 std::vector<SequenceShape> shapes, uint32_t seed = 1)
      : spec_(spec), format_(KvFormat::Of(spec, page_size, dtype)), seed_(seed) {
    size_t num_pages = 1;
    for (const SequenceShape& shape : shapes) num_pages += PagesOf(shape.position + shape.num_rows);
    kv_ = Buffer(num_pages * static_cast<size_t>(spec.num_kv_groups) *
                 static_cast<size_t>(format_.PageBytes()));
    std::memset(kv_.data(), 0xff, kv_.size_bytes());
    std::vector<int32_t> free_pages;
    for (size_t page = 0; page < num_pages; ++page)
      free_pages.push_back(static_cast<int32_t>(page));
    std::mt19937 generator(seed);
    for (size_t i = num_pages - 1; i > 0; --i)
      std::swap(free_pages[i], free_pages[generator() % (i + 1)]);
    page_lists_.resize(shapes.size());
    for (size_t i = 0; i < shapes.size(); ++i) {
      const int length = shapes[i].position + shapes[i].num_rows;
      for (size_t page = 0; page < PagesOf(length); ++page) {
        page_lists_[i].push_back(free_pages.back());
        free_pages.pop_back();
      }
      sequences_.push_back(
          {num_rows_, shapes[i].num_rows, shapes[i].position, page_lists_[i].data()});
      num_rows_ += shapes[i].num_rows;
      FillKv(i, length);
    }
    q_ = RandomFloats(static_cast<size_t>(num_rows_) * static_cast<size_t>(spec.q_width()),
                      seed + 17, -2.0f, 2.0f);
    if (spec.lambda_kind == LambdaKind::kPerTokenHead) {
      lambda_rows_ = RandomFloats(
          static_cast<size_t>(num_rows_) * static_cast<size_t>(spec.num_q1_heads), seed + 18, 0.0f,
          1.0f);
    }
    if (spec.sub_norm == SubNorm::kAffine)
      weight_ = RandomFloats(static_cast<size_t>(spec.v_dim), seed + 19, 0.5f, 1.5f);
  }
  AttentionBatch(const AttentionBatch&) = delete;
  AttentionBatch& operator=(const AttentionBatch&) = delete;

  const DiffSpec& spec() const { return spec_; }
  DiffSpec& spec() { return spec_; }
  int num_rows() const { return num_rows_; }
  std::vector<float>& q() { return q_; }
  std::vector<SequenceRows>& sequences() { return sequences_; }
  float lambda = 0.35f;
  float out_scale = 0.8f;

  // The K1|K2|V element of one token; map 2 addresses V.
  void SetKv(int sequence, int group, int slot, bool is_v, int map, int dim, float value) {
    std::byte* page = Layer().Page(
        page_lists_[static_cast<size_t>(sequence)][static_cast<size_t>(slot / format_.page_size)],
        group);
    const int in_page = slot % format_.page_size;
    SetKvValue(format_, page,
               is_v ? format_.VOffset(dim, in_page) : format_.KOffset(map, dim, in_page), value);
  }

  PagedKv Layer() { return {kv_.as<std::byte>(), format_}; }

  DiffAttentionArgs Args(std::vector<float>& out) {
    out.assign(static_cast<size_t>(num_rows_) * static_cast<size_t>(spec_.out_width()), -77.0f);
    return {.spec = spec_,
            .sequences = sequences_,
            .kv = Layer(),
            .q = q_.data(),
            .out = out.data(),
            .scale = 1.0f / std::sqrt(static_cast<float>(spec_.head_dim)),
            .lambda = lambda,
            .lambda_rows = lambda_rows_.empty() ? nullptr : lambda_rows_.data(),
            .sub_norm_weight = weight_.empty() ? nullptr : weight_.data(),
            .out_scale = out_scale};
  }
  std::vector<float> Reference() {
    std::vector<float> out;
    DiffAttentionRef(Args(out));
    return out;
  }
  std::vector<float> Cpu(CpuIsa isa, ThreadPool& pool) {
    std::vector<float> out;
    cpu::DiffAttention(Args(out), isa, pool);
    return out;
  }

 private:
  size_t PagesOf(int length) const {
    return static_cast<size_t>((length + format_.page_size - 1) / format_.page_size);
  }

  void FillKv(size_t sequence, int length) {
    const size_t per_token = static_cast<size_t>(spec_.k_width() + spec_.v_width());
    const std::vector<float> values = RandomFloats(static_cast<size_t>(length) * per_token,
                                                   seed_ + 100 + static_cast<uint32_t>(sequence));
    size_t next = 0;
    for (int slot = 0; slot < length; ++slot) {
      for (int group = 0; group < spec_.num_kv_groups; ++group) {
        for (int map = 0; map < spec_.k_maps; ++map) {
          for (int d = 0; d < spec_.head_dim; ++d)
            SetKv(static_cast<int>(sequence), group, slot, false, map, d, values[next++]);
        }
        for (int d = 0; d < spec_.v_dim; ++d)
          SetKv(static_cast<int>(sequence), group, slot, true, 0, d, values[next++]);
      }
    }
  }

  DiffSpec spec_;
  KvFormat format_;
  uint32_t seed_;
  Buffer kv_;
  std::vector<std::vector<int32_t>> page_lists_;
  std::vector<SequenceRows> sequences_;
  int num_rows_ = 0;
  std::vector<float> q_;
  std::vector<float> lambda_rows_;
  std::vector<float> weight_;
};

}  // namespace diffserve::testing
