// SPDX-License-Identifier: Apache-2.0
#include "models/diagnostics/attention_capture.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/attention/attention_window.h"
#include "kernels/process/check.h"

namespace diffserve {

AttentionCapture::AttentionCapture(const AttentionSource& source, Selection selection)
    : spec_(source.spec), selection_(std::move(selection)) {
  DS_CHECK(!selection_.layers.empty() && !selection_.positions.empty(),
           "a layer and a position are selected");
  for (int layer : selection_.layers)
    layers_.emplace_back().format = source.layers.at(static_cast<size_t>(layer));
}

size_t AttentionCapture::num_pages(const Layer& layer) const {
  return static_cast<size_t>(last() / layer.format.page_size + 1);
}

size_t AttentionCapture::page_bytes(const Layer& layer) const {
  return static_cast<size_t>(layer.format.PageBytes() * layer.format.num_groups);
}

size_t AttentionCapture::bytes() const {
  const int floats = spec_.q_width() +
                     (spec_.lambda_kind == LambdaKind::kPerTokenHead ? spec_.num_q1_heads : 0);
  size_t bytes = sizeof(*this);
  for (const Layer& layer : layers_) {
    bytes += sizeof(layer) + num_pages(layer) * (page_bytes(layer) + sizeof(int32_t)) +
             selection_.positions.size() * static_cast<size_t>(floats) * sizeof(float);
  }
  return bytes;
}

size_t AttentionCapture::working_bytes() const {
  const auto slots = static_cast<size_t>(last()) + 1;
  const size_t maps = spec_.has_second_map() ? 2 : 1;
  const size_t k = maps * static_cast<size_t>(spec_.head_dim);
  return slots * (k + 2 * maps + 1) * sizeof(double);  // K; logits and p of each map, w
}

void AttentionCapture::Reserve() {
  const size_t positions = selection_.positions.size();
  const size_t lambdas = spec_.lambda_kind == LambdaKind::kPerTokenHead
                             ? static_cast<size_t>(spec_.num_q1_heads)
                             : 0;
  for (Layer& layer : layers_) {
    layer.q.resize(positions * static_cast<size_t>(spec_.q_width()));
    layer.lambda_rows.resize(positions * lambdas);
    layer.pages = std::make_unique<std::byte[]>(num_pages(layer) * page_bytes(layer));
  }
  pages_.resize(num_pages(layers_.front()));  // pages of all layers have as many slots
  std::iota(pages_.begin(), pages_.end(), 0);
}

bool AttentionCapture::WantsAttention(int layer) const {
  return std::ranges::find(selection_.layers, layer) != selection_.layers.end();
}

void AttentionCapture::OnAttention(int number, const DiffAttentionArgs<float>& attention,
                                   const SequenceTokens& sequence) {
  const auto found = std::ranges::find(selection_.layers, number);
  if (found == selection_.layers.end()) return;
  Layer& layer = layers_[static_cast<size_t>(found - selection_.layers.begin())];
  DS_CHECK(layer.pages != nullptr, "the memory is there before the step");
  DS_CHECK(attention.kv.format.PageBytes() == layer.format.PageBytes(),
           "the pages have the format that the source names");
  layer.scale = attention.scale;
  layer.lambda = attention.lambda;
  layer.window = attention.window;
  layer.logit_quant = attention.logit_quant;
  const int end = sequence.position + sequence.num_tokens;
  const auto copy_row = [](const float* from, size_t row, int width, std::vector<float>& rows,
                           size_t to) {
    const auto count = static_cast<size_t>(width);
    if (!rows.empty()) std::copy_n(from + row * count, count, rows.begin() + to * count);
  };
  for (size_t i = 0; i < selection_.positions.size(); ++i) {
    const int position = selection_.positions[i];
    if (position < sequence.position || position >= end) continue;
    const auto row = static_cast<size_t>(sequence.first_row + position - sequence.position);
    copy_row(attention.q, row, spec_.q_width(), layer.q, i);
    copy_row(attention.lambda_rows, row, spec_.num_q1_heads, layer.lambda_rows, i);
  }
  // Without a window the last step has all pages. With one, each step has those that its tokens
  // see.
  if (layer.window == 0 && (last() < sequence.position || last() >= end)) return;
  const int begin = FirstSlotSeen(std::max(first(), sequence.position), WindowSlots(layer.window));
  const auto page_size = static_cast<size_t>(layer.format.page_size);
  const size_t bytes = page_bytes(layer);
  const size_t end_page = (static_cast<size_t>(std::min(end - 1, last())) / page_size) + 1;
  for (size_t page = static_cast<size_t>(begin) / page_size; page < end_page; ++page)
    std::memcpy(&layer.pages[page * bytes], attention.kv.Page(sequence.pages[page], 0), bytes);
}

// The copies as one row of a batch.
SequenceTokens AttentionCapture::SequenceAt(int row, int position) const {
  return {.first_row = row, .num_tokens = 1, .position = position, .pages = pages_.data()};
}

DiffAttentionArgs<float> AttentionCapture::ArgsOf(const Layer& layer) const {
  DiffAttentionArgs<float> args;
  args.spec = spec_;
  args.kv = {layer.pages.get(), layer.format};
  args.q = layer.q.data();
  args.scale = layer.scale;
  args.lambda = layer.lambda;
  args.lambda_rows = layer.lambda_rows.data();
  args.window = layer.window;
  args.logit_quant = layer.logit_quant;
  return args;
}

GroupKeys AttentionCapture::KeysOf(size_t layer, int group) const {
  SequenceTokens rows = SequenceAt(0, first());
  rows.num_tokens = last() - first() + 1;
  return GroupKeysRef(ArgsOf(layers_[layer]), rows, group);
}

AttentionMaps AttentionCapture::MapsOf(size_t layer, size_t position, int head,
                                       const GroupKeys& keys) const {
  return AttentionMapsRef(ArgsOf(layers_[layer]),
                          SequenceAt(static_cast<int>(position), selection_.positions[position]), 0,
                          head, keys);
}

}  // namespace diffserve
