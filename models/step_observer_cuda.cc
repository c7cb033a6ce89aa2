// SPDX-License-Identifier: Apache-2.0
#include "models/step_observer_cuda.h"

#include <algorithm>

#include "kernels/attention/attention_window.h"

namespace diffserve::cuda {
namespace {

size_t RowsOf(size_t rows, int width) { return rows * static_cast<size_t>(width); }

void Widen(std::span<const BFloat16> from, float* to) {
  for (const BFloat16 x : from) *to++ = BFloat16ToFloat(x);
}

}  // namespace

StepObserver::StepObserver(const Batch& batch, const ModelConfig& config, const Stream& stream)
    : batch_(batch), config_(config), stream_(stream) {
  states_.resize(RowsOf(batch.observer->StateRows().size(), config.hidden_size));
}

void StepObserver::BeginPass(const PackedStep& packed) {
  packed_of_token_.assign(packed.packed_of_token().begin(), packed.packed_of_token().end());
  num_tokens_ = packed.shape.num_tokens;
}

bool StepObserver::IsInPass(const SequenceTokens& sequence) const {
  return packed_of_token_[static_cast<size_t>(sequence.first_row)] >= 0;
}

SequenceTokens StepObserver::SequenceOf(size_t index, int window) const {
  SequenceTokens sequence = batch_.sequences[index];
  if (window > 0 && sequence.window_pages != nullptr) sequence.pages = sequence.window_pages;
  return sequence;
}

Status StepObserver::OnAttention(int layer, const DiffAttentionArgs<BFloat16>& attention) {
  std::vector<size_t> seen;
  for (size_t i = 0; i < batch_.sequences.size(); ++i) {
    if (IsInPass(batch_.sequences[i]) && batch_.observer->WantsAttention(layer, i))
      seen.push_back(i);
  }
  if (seen.empty()) return Status();

  const DiffSpec& spec = attention.spec;
  const auto tokens = static_cast<size_t>(num_tokens_);
  device_rows_.resize(RowsOf(tokens, spec.q_width()));
  DS_RETURN_IF_ERROR(
      CopyToHost(attention.q, std::as_writable_bytes(std::span(device_rows_)), stream_));
  if (spec.lambda_kind == LambdaKind::kPerTokenHead) {
    device_lambdas_.resize(RowsOf(tokens, spec.num_q1_heads));
    DS_RETURN_IF_ERROR(CopyToHost(attention.lambda_rows,
                                  std::as_writable_bytes(std::span(device_lambdas_)), stream_));
  }
  std::vector<SequenceTokens> sequences(batch_.sequences.size());
  std::vector<std::vector<int32_t>> tables;  // [seen]
  int32_t num_pages = 0;
  for (const size_t i : seen) {
    sequences[i] = SequenceOf(i, attention.window);
    tables.push_back(
        TableOf(sequences[i], attention.kv.format.page_size, attention.window, &num_pages));
  }
  pages_.resize(static_cast<size_t>(num_pages * attention.kv.format.num_groups *
                                    attention.kv.format.PageBytes()));
  for (size_t i = 0; i < seen.size(); ++i) {
    DS_RETURN_IF_ERROR(TakePages(attention.kv, sequences[seen[i]], tables[i]));
    sequences[seen[i]].pages = tables[i].data();
  }
  DS_RETURN_IF_ERROR(stream_.Synchronize());

  q_.resize(RowsOf(batch_.tokens.size(), spec.q_width()));
  lambda_rows_.resize(device_lambdas_.empty() ? 0
                                              : RowsOf(batch_.tokens.size(), spec.num_q1_heads));
  for (const size_t i : seen) TakeRows(sequences[i], spec);
  DiffAttentionArgs<float> host;
  host.spec = spec;
  host.batch = sequences;
  host.kv = {pages_.data(), attention.kv.format};
  host.q = q_.data();
  host.scale = attention.scale;
  host.lambda = attention.lambda;
  host.lambda_rows = lambda_rows_.data();
  host.window = attention.window;
  host.logit_quant = attention.logit_quant;
  batch_.observer->OnAttention(layer, host);
  return Status();
}

void StepObserver::TakeRows(const SequenceTokens& sequence, const DiffSpec& spec) {
  for (int i = 0; i < sequence.num_tokens; ++i) {
    const auto row = static_cast<size_t>(sequence.first_row + i);
    const auto packed = static_cast<size_t>(packed_of_token_[row]);
    const auto q_width = static_cast<size_t>(spec.q_width());
    Widen(std::span(device_rows_).subspan(packed * q_width, q_width), &q_[row * q_width]);
    if (lambda_rows_.empty()) continue;
    const auto heads = static_cast<size_t>(spec.num_q1_heads);
    std::ranges::copy(std::span(device_lambdas_).subspan(packed * heads, heads),
                      lambda_rows_.begin() + static_cast<ptrdiff_t>(row * heads));
  }
}

std::vector<int32_t> StepObserver::TableOf(const SequenceTokens& sequence, int page_size,
                                           int window, int32_t* num_pages) {
  const int begin = FirstSlotSeen(sequence.position, WindowSlots(window)) / page_size;
  const int end = (sequence.position + sequence.num_tokens - 1) / page_size + 1;
  std::vector<int32_t> table(static_cast<size_t>(end), -1);
  for (int page = begin; page < end; ++page) table[static_cast<size_t>(page)] = (*num_pages)++;
  return table;
}

Status StepObserver::TakePages(const PagedKv& kv, const SequenceTokens& sequence,
                               std::span<const int32_t> table) {
  const auto page_bytes = static_cast<size_t>(kv.format.PageBytes() * kv.format.num_groups);
  for (size_t i = 0; i < table.size(); ++i) {
    if (table[i] < 0) continue;
    const auto to = std::span(pages_).subspan(static_cast<size_t>(table[i]) * page_bytes,
                                              page_bytes);
    DS_RETURN_IF_ERROR(CopyToHost(kv.Page(sequence.pages[i], 0), to, stream_));
  }
  return Status();
}

Status StepObserver::OnStates(const DeviceBuffer& states) {
  const auto width = static_cast<size_t>(config_.hidden_size);
  std::vector<BFloat16> rows(static_cast<size_t>(num_tokens_) * width);
  DS_RETURN_IF_ERROR(CopyToHost(states, 0, std::as_writable_bytes(std::span(rows)), stream_));
  DS_RETURN_IF_ERROR(stream_.Synchronize());
  const std::span<const int32_t> wanted = batch_.observer->StateRows();
  for (size_t i = 0; i < wanted.size(); ++i) {
    const int32_t packed = packed_of_token_[static_cast<size_t>(wanted[i])];
    if (packed < 0) continue;
    Widen(std::span(rows).subspan(static_cast<size_t>(packed) * width, width), &states_[i * width]);
  }
  return Status();
}

void StepObserver::End() {
  if (!states_.empty()) batch_.observer->OnStates(states_);
  batch_.observer->OnEnd();
}

}  // namespace diffserve::cuda
