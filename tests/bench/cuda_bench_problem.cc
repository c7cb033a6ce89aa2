// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/cuda_bench_problem.h"

#include <cmath>
#include <numeric>
#include <random>
#include <span>

#include "kernels/ops/rope_append.h"
#include "tests/bench/cuda_bench_kernels.h"

namespace diffserve::bench {
namespace {

int64_t PagesOfSequence(int length) {
  return (length + cuda::kImagePageSize - 1) / cuda::kImagePageSize;
}

}  // namespace

double Problem::BytesOfOneCopy(const DiffSpec& spec, const ProblemShape& shape) {
  return static_cast<double>(shape.batch * PagesOfSequence(shape.position + shape.rows) *
                             spec.num_kv_groups * cuda::ImageFormat(spec, shape.pages).PageBytes());
}

template <typename T>
cuda::DeviceBuffer Problem::Upload(const std::vector<T>& values) const {
  cuda::DeviceBuffer buffer = Must(cuda::DeviceBuffer::Allocate(values.size() * sizeof(T)));
  Must(cuda::CopyToDevice(std::as_bytes(std::span(values)), buffer, 0, stream_));
  Must(stream_.Synchronize());
  return buffer;
}

cuda::DeviceBuffer Problem::MakePages(int64_t num_pages) const {
  const KvFormat format = cuda::ImageFormat(spec_, shape_.pages);
  cuda::DeviceBuffer pages = Must(
      cuda::DeviceBuffer::Allocate(static_cast<size_t>(BytesOfOneCopy(spec_, shape_))));
  if (shape_.pages != DType::kBFloat16) {
    Must(cuda::FillBytes(pages, std::byte{0x3c}, stream_));
  } else {
    Must(FillPages({{pages.as<std::byte>(), format},
                    num_pages * spec_.num_kv_groups,
                    shape_.first_map,
                    shape_.first_v_column},
                   stream_.handle()));
  }
  return pages;
}

Problem::Problem(const DiffSpec& spec, const ProblemShape& shape, const cuda::Stream& stream)
    : spec_(spec), shape_(shape), stream_(stream) {
  const char* reason = cuda::DiffAttentionUnsupported(spec, cuda::ImageFormat(spec, shape.pages));
  if (reason != nullptr) Must(Status(StatusCode::kInternal, reason));
  const int64_t pages_of_sequence = PagesOfSequence(length());
  std::vector<int32_t> table(static_cast<size_t>(shape.batch * pages_of_sequence));
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(1));
  std::vector<cuda::DeviceSequence> sequences;
  std::vector<int32_t> token_sequences;
  for (int i = 0; i < shape.batch; ++i) {
    sequences.push_back(
        {i * shape.rows, shape.rows, shape.position, static_cast<int32_t>(i * pages_of_sequence)});
    token_sequences.insert(token_sequences.end(), static_cast<size_t>(shape.rows), i);
  }
  sequences_ = Upload(sequences);
  row_sequences_ = Upload(token_sequences);
  page_table_ = Upload(table);
  const size_t num_tokens = token_sequences.size();
  q_ = Must(cuda::DeviceBuffer::Allocate(2 * num_tokens * static_cast<size_t>(spec.q_width())));
  out_ = Must(cuda::DeviceBuffer::Allocate(2 * num_tokens * static_cast<size_t>(spec.out_width())));
  Must(FillRandom(q_.as<uint16_t>(), num_tokens, spec.q_width(), shape.first_q_column,
                  stream.handle()));
  lambda_rows_ = Upload(
      std::vector<float>(num_tokens * static_cast<size_t>(spec.num_q1_heads), 0.5f));
  for (int copy = 0; copy < shape.copies; ++copy)
    pages_of_copies_.push_back(MakePages(static_cast<int64_t>(table.size())));

  cuda::AttentionTiling tiling = cuda::DiffPrefillTiling(spec);
  if (shape.is_decode) {
    tiling = cuda::DiffDecodeTiling(spec, shape.rows);
    tiling.split_slots = shape.split_slots;
  }
  std::vector<cuda::AttentionItem> items;
  cuda::PlanAttention(sequences, tiling, &items);
  const auto num_items = static_cast<int32_t>(items.size());
  items_ = Upload(items);
  plan_head_ = Upload(std::vector<cuda::AttentionPlanHead>{{0, num_items, 1}});
  if (shape.is_decode) {
    partials_ = Must(cuda::DeviceBuffer::Allocate(
        cuda::DiffDecodePartialFloats(spec, tiling, num_items) * sizeof(float)));
    counters_ = Upload(std::vector<uint32_t>(cuda::DiffDecodeCounters(spec, num_items)));
  } else {
    MakeMemoryOfPrompts(table.size(), num_tokens);
  }
  args_.spec = spec;
  args_.batch.num_sequences = shape.batch;
  args_.batch.num_tokens = static_cast<int>(num_tokens);
  args_.batch.sequences = sequences_.as<cuda::DeviceSequence>();
  args_.batch.token_sequences = row_sequences_.as<int32_t>();
  args_.batch.pages = page_table_.as<int32_t>();
  args_.q = q_.as<uint16_t>();
  args_.out = out_.as<uint16_t>();
  args_.scale = 1.0f / std::sqrt(static_cast<float>(spec.head_dim));
  args_.lambda = 0.5f;
  args_.lambda_rows = lambda_rows_.as<float>();
  schedule_.tiling = tiling;
  schedule_.allow_bulk_copies = shape.allow_bulk_copies;
  schedule_.plan = {plan_head_.as<cuda::AttentionPlanHead>(), items_.as<cuda::AttentionItem>()};
  schedule_.partials = partials_.as<float>();
  schedule_.counters = counters_.as<uint32_t>();
  Must(stream.Synchronize());
}

void Problem::MakeMemoryOfPrompts(size_t num_pages, size_t num_tokens) {
  widened_ = Must(cuda::DeviceBuffer::Allocate(cuda::WidenedPageBytes(spec_) * num_pages *
                                               static_cast<size_t>(spec_.num_kv_groups)));
  widened_ids_ = Must(cuda::DeviceBuffer::Allocate(sizeof(int32_t) * num_pages));
  schedule_.widened = {widened_.as<std::byte>(), widened_.size_bytes(), widened_ids_.as<int32_t>(),
                       0, static_cast<int>(num_pages)};
  const int width = spec_.q_width() + spec_.k_width() + spec_.v_width();
  qkv_ = Must(cuda::DeviceBuffer::Allocate(2 * num_tokens * static_cast<size_t>(width)));
  Must(FillRandom(qkv_.as<uint16_t>(), num_tokens, width, 0, stream_.handle()));
  angles_ = Must(cuda::DeviceBuffer::Allocate(sizeof(float) * static_cast<size_t>(length()) *
                                              static_cast<size_t>(spec_.head_dim / 2)));
  Must(cuda::FillBytes(angles_, std::byte{0}, stream_));
}

void Problem::Queue(int run, bool follows_kernel) const {
  DiffAttentionArgs<BFloat16> args = args_;
  cuda::AttentionSchedule schedule = schedule_;
  schedule.follows_kernel = follows_kernel;
  const size_t copy = static_cast<size_t>(run) % pages_of_copies_.size();
  args.kv = {pages_of_copies_[copy].as<std::byte>(), cuda::ImageFormat(spec_, shape_.pages)};
  Must(cuda::DiffAttention(args, schedule, stream_));
}

void Problem::QueueAppend(int run) const {
  const size_t copy = static_cast<size_t>(run) % pages_of_copies_.size();
  const auto* angles = angles_.as<float>();
  Must(cuda::RopeAppend(
      {.spec = spec_,
       .batch = args_.batch,
       .kv = {pages_of_copies_[copy].as<std::byte>(), cuda::ImageFormat(spec_, shape_.pages)},
       .rope = {angles, angles, spec_.head_dim / 2, length()},
       .qkv = qkv_.as<uint16_t>(),
       .q = q_.as<uint16_t>()},
      stream_));
}

std::vector<uint16_t> Problem::Out() const {
  std::vector<uint16_t> values(out_.size_bytes() / 2);
  Must(cuda::CopyToHost(out_, 0, std::as_writable_bytes(std::span(values)), stream_));
  Must(stream_.Synchronize());
  return values;
}

double Problem::KvBytes() const {
  const KvFormat format = cuda::ImageFormat(spec_, shape_.pages);
  return static_cast<double>(shape_.batch) * length() * spec_.num_kv_groups * format.PageBytes() /
         format.page_size;
}

double Problem::Pairs() const {
  const double rows = shape_.rows;
  return shape_.batch * spec_.num_q1_heads * (rows * shape_.position + rows * (rows + 1) / 2);
}

}  // namespace diffserve::bench
