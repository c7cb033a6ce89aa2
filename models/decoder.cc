// SPDX-License-Identifier: Apache-2.0
#include "models/decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/ops/embedding.h"
#include "kernels/ops/rowwise.h"
#include "kernels/process/check.h"
#include "models/layer_observer.h"

namespace diffserve::cpu {

namespace {

// Empty if nothing is rotated.
RopeTable MakeRopeTable(const ModelConfig& config, int max_positions) {
  if (config.rope.style == RopeStyle::kNone) return {};
  return RopeTable(InverseFrequencies(config.rope, config.attention.head_dim), max_positions,
                   config.rope.attention_factor);
}

}  // namespace

Decoder::Decoder(Parts parts, ThreadPool& pool)
    : parts_(std::move(parts)),
      pool_(pool),
      rope_(MakeRopeTable(parts_.config, parts_.max_positions)) {
  const auto tokens = static_cast<size_t>(parts_.limits.num_tokens);
  const auto sequences = static_cast<size_t>(parts_.limits.num_sequences);
  const auto vocab = static_cast<size_t>(parts_.config.vocab_size);
  for (const auto& [memory, width, _] : Workspace::PerToken(parts_.config))
    (work_.*memory).reserve(tokens * static_cast<size_t>(width));
  const size_t logits = std::min({tokens, sequences, kMaxLogitElements / vocab});
  work_.logits.reserve(std::max<size_t>(logits, 1) * vocab);
}

Status Decoder::Forward(const Batch& batch, KvCache& kv) {
  const ModelConfig& config = parts_.config;
  for (const auto& [memory, width, _] : Workspace::PerToken(config)) {
    std::vector<float>& values = work_.*memory;
    values.resize(std::max(values.size(), batch.tokens.size() * static_cast<size_t>(width)));
  }
  Begin(batch);

  // Stage 1: the residual stream begins with the tokens' embeddings.
  EmbeddingLookup(
      parts_.weights.embedding,
      {.tokens = batch.tokens.data(), .out = work_.hidden.data(), .num_tokens = rows_.tokens},
      pool_);

  // Stage 2: the layers add to it.
  const std::span<const float> hidden(
      work_.hidden.data(), batch.tokens.size() * static_cast<size_t>(config.hidden_size));
  for (int l = 0; l < config.num_layers; ++l) {
    const Weights::Layer& layer = parts_.weights.layers[static_cast<size_t>(l)];
    switch (config.layers[static_cast<size_t>(l)].mixer) {
      case MixerKind::kAttention:
        Attention(l, batch, kv);
        break;
      case MixerKind::kMamba:
        Mamba(l, kv);
        break;
      case MixerKind::kGatedMemory:
        GatedMemory(layer);
        break;
    }
    Mlp(layer);
    if (batch.observer != nullptr) batch.observer->OnHidden(l, hidden);
  }

  // Stage 3: the final state of the tokens whose logits are wanted.
  if (batch.observer != nullptr) ShowStates(*batch.observer);
  const Weights& weights = parts_.weights;
  Norm(weights.final_norm, weights.final_norm_bias, num_logit_rows_, work_.normed.data(),
       rows_.logit_rows.data());
  SampleAll(batch);
  return Status();
}

void Decoder::Begin(const Batch& batch) {
  const int tokens = static_cast<int>(batch.tokens.size());
  num_logit_rows_ = static_cast<int>(batch.logit_rows.size());
  DS_CHECK(std::ranges::all_of(batch.logit_rows, [&](int row) { return row >= 0 && row < tokens; }),
           "logit_rows are rows of the batch");
  rows_ = {tokens, batch.sequences, batch.sequences, batch.logit_rows};
  for (SequenceTokens& sequence : rows_.in_windows) {
    if (sequence.window_pages != nullptr) sequence.pages = sequence.window_pages;
  }
  state_waves_.clear();
  if (parts_.config.num_state_layers() == 0) return;
  DS_CHECK(batch.states.empty() || batch.states.size() == batch.sequences.size(),
           "slots for each sequence");
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const SequenceTokens& sequence = batch.sequences[i];
    const auto own = static_cast<int32_t>(i);
    if (sequence.num_tokens == 0) continue;
    AddToWaves({sequence.position, sequence.first_row, 0, sequence.num_tokens},
               batch.states.empty() ? StateSlotUse{own, own} : batch.states[i], state_waves_);
  }
}

// From here on nothing is kept of a token. So only tokens whose logits are wanted, and those after
// them in their sequences, are computed. Their rows move to the front.
void Decoder::Narrow() {
  const Rows all = std::exchange(rows_, {});
  const auto move_rows = [&](std::vector<float>& memory, int width, int from, int to, int count) {
    if (width == 0 || from == to) return;
    const float* source = memory.data() + int64_t{from} * width;
    std::copy_n(source, int64_t{count} * width, memory.data() + int64_t{to} * width);
  };
  const DiffSpec& spec = parts_.config.attention;
  const bool has_lambdas = spec.lambda_kind == LambdaKind::kPerTokenHead;
  auto wanted = all.logit_rows.begin();
  for (size_t i = 0; i < all.sequences.size(); ++i) {
    const SequenceTokens& sequence = all.sequences[i];
    const int end = sequence.first_row + sequence.num_tokens;
    const int first = wanted == all.logit_rows.end() ? end : std::min<int>(*wanted, end);
    const int count = end - first;
    if (count == 0) continue;
    for (; wanted != all.logit_rows.end() && *wanted < end; ++wanted)
      rows_.logit_rows.push_back(rows_.tokens + *wanted - first);
    move_rows(work_.hidden, parts_.config.hidden_size, first, rows_.tokens, count);
    move_rows(work_.normed, has_lambdas ? parts_.config.hidden_size : 0, first, rows_.tokens,
              count);
    move_rows(work_.q, spec.q_width(), first, rows_.tokens, count);
    move_rows(work_.memory, parts_.config.mamba.inner, first, rows_.tokens, count);
    const int position = sequence.position + first - sequence.first_row;
    rows_.sequences.push_back({rows_.tokens, count, position, sequence.pages});
    rows_.in_windows.push_back({rows_.tokens, count, position, all.in_windows[i].pages});
    rows_.tokens += count;
  }
}

// Each row's norm is a chain of its own, so the states of logit_rows have the same bits without an
// observer.
void Decoder::ShowStates(LayerObserver& observer) {
  if (const std::span<const int32_t> rows = observer.StateRows(); !rows.empty()) {
    const Weights& weights = parts_.weights;
    Norm(weights.final_norm, weights.final_norm_bias, static_cast<int>(rows.size()),
         work_.normed.data(), rows.data());
    observer.OnStates(
        {work_.normed.data(), rows.size() * static_cast<size_t>(parts_.config.hidden_size)});
  }
  observer.OnEnd();
}

// hidden += W_o attention(norm(hidden)); K and V of the batch's tokens are appended to their pages.
void Decoder::Attention(int l, const Batch& batch, KvCache& kv) {
  const Weights::Layer& layer = parts_.weights.layers[static_cast<size_t>(l)];
  const LayerConfig& kind = parts_.config.layers[static_cast<size_t>(l)];
  const DiffSpec& spec = parts_.config.attention;
  const PagedKv pages = kv.Layer(kind.kv);
  // Stage 1: q, k and v.
  Norm(layer.input_norm, layer.input_norm_bias, rows_.tokens, work_.normed.data());
  Linear(layer.qkv, {.x = work_.normed.data(), .num_tokens = rows_.tokens, .y = work_.qkv.data()},
         pool_);

  // Stage 2: q and k are rotated, k and v go to their pages.
  RopeAppendArgs<float> append;
  append.spec = spec;
  const auto& sequences = kind.window > 0 ? rows_.in_windows : rows_.sequences;
  append.batch = sequences;
  append.kv = pages;
  append.rope = rope_.angles();
  append.style = parts_.config.rope.style;
  append.has_kv = !kind.shares_kv;
  append.qkv = work_.qkv.data();
  append.q = work_.q.data();
  RopeAppend(append, parts_.isa, pool_);
  if (l == parts_.config.last_keeping_layer() && batch.observer == nullptr) Narrow();

  // Stage 3: lambda of each token and head, if the family has it.
  if (spec.lambda_kind == LambdaKind::kPerTokenHead) {
    Linear(layer.lambda_proj,
           {.x = work_.normed.data(), .num_tokens = rows_.tokens, .y = work_.lambda.data()}, pool_);
    Sigmoid({work_.lambda.data(), int64_t{rows_.tokens} * spec.num_q1_heads}, parts_.isa, pool_);
  }

  // Stage 4: attention over the pages.
  DiffAttentionArgs<float> attention;
  attention.spec = spec;
  attention.batch = kind.window > 0 ? rows_.in_windows : rows_.sequences;
  attention.kv = pages;
  attention.q = work_.q.data();
  attention.out = work_.attention.data();
  attention.scale = 1.0f / std::sqrt(static_cast<float>(spec.head_dim));
  attention.lambda = layer.lambda;
  attention.lambda_rows = work_.lambda.data();
  attention.sub_norm_weight = layer.sub_norm.data();
  attention.out_scale = layer.out_scale;
  attention.window = kind.window;
  attention.logit_quant = parts_.logit_quant;
  if (batch.observer != nullptr) batch.observer->OnAttention(l, attention);
  DiffAttention(attention, work_.attention_workspace, parts_.isa, pool_);

  // Stage 5: its output joins the residual stream.
  AddToHidden(layer, work_.attention);
}

void Decoder::AddToHidden(const Weights::Layer& layer, const std::vector<float>& mixed) {
  Linear(
      layer.mixer_out,
      {.x = mixed.data(), .num_tokens = rows_.tokens, .y = work_.hidden.data(), .accumulate = true},
      pool_);
}

// hidden += W_down (act(W_gate x) * W_up x) with x = norm(hidden); act is SiLU or PolyNorm.
void Decoder::Mlp(const Weights::Layer& layer) {
  const int tokens = rows_.tokens;
  // Stage 1: gate and up.
  Norm(layer.post_attention_norm, layer.post_attention_norm_bias, tokens, work_.normed.data());
  Linear(layer.gate_up, {.x = work_.normed.data(), .num_tokens = tokens, .y = work_.gate_up.data()},
         pool_);

  // Stage 2: the activation.
  const int width = parts_.config.intermediate_size;
  const float* gate_up = work_.gate_up.data();
  float* mlp = work_.mlp.data();
  switch (parts_.config.mlp) {
    case MlpKind::kSwiGlu:
      SiluMul({gate_up, mlp, tokens, width}, parts_.isa, pool_);
      break;
    case MlpKind::kPolyNorm: {
      const auto& [w, bias] = layer.poly_norm;
      PolyNormMul({gate_up, mlp, tokens, width, {w[0], w[1], w[2]}, bias}, parts_.isa, pool_);
      break;
    }
  }

  // Stage 3: down joins the residual stream.
  Linear(
      layer.down,
      {.x = work_.mlp.data(), .num_tokens = tokens, .y = work_.hidden.data(), .accumulate = true},
      pool_);
}

// out[t] = norm of row t of hidden, or of row indices[t].
void Decoder::Norm(const std::vector<float>& weight, const std::vector<float>& bias, int tokens,
                   float* out, const int32_t* indices) {
  const float* hidden = work_.hidden.data();
  const int width = parts_.config.hidden_size;
  const float eps = parts_.config.norm_eps;
  switch (parts_.config.norm) {
    case NormKind::kRmsNorm:
      RmsNorm({hidden, weight.data(), out, tokens, width, eps, indices}, parts_.isa, pool_);
      break;
    case NormKind::kLayerNorm:
      LayerNorm({hidden, weight.data(), bias.data(), out, tokens, width, eps, indices}, parts_.isa,
                pool_);
      break;
  }
}

void Decoder::SampleAll(const Batch& batch) {
  const int count = static_cast<int>(batch.sample_rows.size());
  const int vocab = parts_.config.vocab_size;
  DS_CHECK(count == 0 || count == num_logit_rows_, "one sample row for each row of logits");
  sampled_.assign(batch.sample_rows.size(), {});
  work_.adjustments = batch.adjustments;
  const int slice = static_cast<int>(std::max<int64_t>(1, kMaxLogitElements / vocab));
  for (int first = 0; first < count; first += slice) {
    const int rows = std::min(slice, count - first);
    LogitsOf(first, rows);
    Sample({.logits = work_.logits.data(),
            .vocab_size = vocab,
            .num_rows = rows,
            .tasks = batch.sample_rows.data() + first,
            .adjustments = work_.adjustments.data(),
            .masks = batch.masks.data(),
            .sampled = sampled_.data() + first},
           parts_.isa, pool_);
  }
}

// work_.logits = the logits of final states [first, first + count).
std::span<const float> Decoder::LogitsOf(int first, int count) {
  DS_CHECK(first >= 0 && count >= 0 && count <= num_logit_rows_ - first,
           "logits of rows that the last Forward did not keep");
  if (count == 0) return {};
  const size_t vocab = static_cast<size_t>(parts_.config.vocab_size);
  const size_t width = static_cast<size_t>(parts_.config.hidden_size);
  work_.logits.resize(std::max(work_.logits.size(), static_cast<size_t>(count) * vocab));
  const float* x = work_.normed.data() + static_cast<size_t>(first) * width;
  Linear(parts_.weights.lm_head, {.x = x, .num_tokens = count, .y = work_.logits.data()}, pool_);
  return {work_.logits.data(), static_cast<size_t>(count) * vocab};
}

Result<KvCache> Decoder::MakeKvCache(std::vector<KvFormat> layers, const KvCacheSize& size) const {
  return KvCache(LayoutOf(parts_.config, std::move(layers), size));
}

Result<std::span<const float>> Decoder::Logits(int first, int count) {
  return LogitsOf(first, count);
}

size_t Decoder::ActivationBytesPerToken(const ModelConfig& config) {
  size_t floats = 0;
  for (const auto& sized : Workspace::PerToken(config)) floats += static_cast<size_t>(sized.width);
  return floats * sizeof(float);
}

}  // namespace diffserve::cpu
