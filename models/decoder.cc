#include "models/decoder.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "kernels/attention/diff_attention.h"
#include "kernels/base/check.h"
#include "kernels/ops/rowwise.h"

namespace diffserve {

Decoder::Decoder(Parts parts, ThreadPool& pool)
    : parts_(std::move(parts)),
      pool_(pool),
      rope_(InverseFrequencies(parts_.config.rope, parts_.config.attention.head_dim),
            parts_.max_positions, parts_.config.rope.attention_factor) {}

Result<KvCache> Decoder::MakeKvCache(const KvFormat& format, int num_pages) const {
  return KvCache(format, parts_.config.num_layers, num_pages);
}

Status Decoder::CopyPage(KvCache& kv, int32_t from, int32_t to) {
  for (int layer = 0; layer < kv.num_layers(); ++layer) {
    const PagedKv pages = kv.Layer(layer);
    std::memcpy(pages.Page(to, 0), pages.Page(from, 0), KvCache::BytesPerPage(kv.format(), 1));
  }
  return Status();
}

Status Decoder::Forward(const Batch& batch, KvCache& kv) {
  const ModelConfig& config = parts_.config;
  const int rows = static_cast<int>(batch.tokens.size());
  const size_t width = static_cast<size_t>(config.hidden_size);
  work_.Reserve(config, batch.tokens.size());

  cpu::EmbeddingLookup(parts_.weights.embedding, batch.tokens, work_.hidden.data(), pool_);
  for (int l = 0; l < config.num_layers; ++l) {
    const LayerWeights& layer = parts_.weights.layers[static_cast<size_t>(l)];
    Attention(layer, batch, kv.Layer(l));
    Mlp(layer, rows);
  }

  // Only the rows whose logits are wanted go on. They are ascending, so moving each up never
  // overwrites one still to be moved.
  num_logit_rows_ = static_cast<int>(batch.logit_rows.size());
  for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
    const size_t row = static_cast<size_t>(batch.logit_rows[i]);
    DS_CHECK(row >= i && row < batch.tokens.size(),
             "logit_rows must be ascending rows of the batch");
    if (row != i)
      std::memcpy(&work_.hidden[i * width], &work_.hidden[row * width], width * sizeof(float));
  }
  Norm(parts_.weights.final_norm, num_logit_rows_);
  SampleAll(batch);
  return Status();
}

// Each row is one worker's.
void Decoder::SampleAll(const Batch& batch) {
  const size_t count = batch.sample_rows.size();
  const auto vocab = static_cast<size_t>(parts_.config.vocab_size);
  DS_CHECK(count == 0 || count == batch.logit_rows.size(), "one sample row for each row of logits");
  sampled_.assign(count, {});
  const size_t slice = std::max<size_t>(1, static_cast<size_t>(kMaxLogitElements) / vocab);
  for (size_t first = 0; first < count; first += slice) {
    const size_t rows = std::min(slice, count - first);
    const std::span<const float> logits = LogitsOf(static_cast<int>(first), static_cast<int>(rows));
    std::atomic<size_t> next{0};
    pool_.Run([&](int) {
      for (size_t i = next.fetch_add(1); i < rows; i = next.fetch_add(1)) {
        const SampleRow& row = batch.sample_rows[first + i];
        const auto adjustments = std::span(batch.adjustments)
                                     .subspan(static_cast<size_t>(row.first_adjustment),
                                              static_cast<size_t>(row.num_adjustments));
        sampled_[first + i] = cpu::SampleRow(logits.subspan(i * vocab, vocab), row, adjustments);
      }
    });
  }
}

Result<std::span<const float>> Decoder::Logits(int first, int count) {
  return LogitsOf(first, count);
}

std::span<const float> Decoder::LogitsOf(int first, int count) {
  DS_CHECK(first >= 0 && count >= 0 && count <= num_logit_rows_ - first,
           "logits of rows that the last Forward did not keep");
  if (count == 0) return {};
  const size_t vocab = static_cast<size_t>(parts_.config.vocab_size);
  const size_t width = static_cast<size_t>(parts_.config.hidden_size);
  work_.logits.resize(std::max(work_.logits.size(), static_cast<size_t>(count) * vocab));
  const float* x = work_.normed.data() + static_cast<size_t>(first) * width;
  cpu::Linear(parts_.weights.lm_head, {.x = x, .rows = count, .y = work_.logits.data()}, pool_);
  return {work_.logits.data(), static_cast<size_t>(count) * vocab};
}

// hidden += W_o attention(norm(hidden)); K and V of the batch's rows are appended to their pages.
void Decoder::Attention(const LayerWeights& layer, const Batch& batch, const PagedKv& kv) {
  const DiffSpec& spec = parts_.config.attention;
  const int rows = static_cast<int>(batch.tokens.size());
  Norm(layer.input_norm, rows);
  cpu::Linear(layer.qkv, {.x = work_.normed.data(), .rows = rows, .y = work_.qkv.data()}, pool_);
  RopeAppendArgs<float> append;
  append.spec = spec;
  append.batch = batch.sequences;
  append.kv = kv;
  append.rope = rope_.angles();
  append.style = parts_.config.rope.style;
  append.qkv = work_.qkv.data();
  append.q = work_.q.data();
  cpu::RopeAppend(append, parts_.isa, pool_);

  if (spec.lambda_kind == LambdaKind::kPerTokenHead) {
    cpu::Linear(layer.lambda_proj,
                {.x = work_.normed.data(), .rows = rows, .y = work_.lambda.data()}, pool_);
    cpu::Sigmoid(
        {work_.lambda.data(), static_cast<size_t>(rows) * static_cast<size_t>(spec.num_q1_heads)},
        parts_.isa);
  }

  DiffAttentionArgs<float> attention;
  attention.spec = spec;
  attention.batch = batch.sequences;
  attention.kv = kv;
  attention.q = work_.q.data();
  attention.out = work_.attention.data();
  attention.scale = 1.0f / std::sqrt(static_cast<float>(spec.head_dim));
  attention.lambda = layer.lambda;
  attention.lambda_rows = work_.lambda.data();
  attention.sub_norm_weight = layer.sub_norm.data();
  attention.out_scale = layer.out_scale;
  cpu::DiffAttention(attention, parts_.isa, pool_);
  cpu::Linear(
      layer.attention_out,
      {.x = work_.attention.data(), .rows = rows, .y = work_.hidden.data(), .accumulate = true},
      pool_);
}

// hidden += W_down (act(W_gate x) * W_up x) with x = norm(hidden); act is SiLU or PolyNorm.
void Decoder::Mlp(const LayerWeights& layer, int rows) {
  Norm(layer.post_attention_norm, rows);
  cpu::Linear(layer.gate_up, {.x = work_.normed.data(), .rows = rows, .y = work_.gate_up.data()},
              pool_);
  const int width = parts_.config.intermediate_size;
  switch (parts_.config.mlp) {
    case MlpKind::kSwiGlu:
      cpu::SiluMul({work_.gate_up.data(), work_.mlp.data(), rows, width}, parts_.isa, pool_);
      break;
    case MlpKind::kPolyNorm: {
      const auto& [w, bias] = layer.poly_norm;
      cpu::PolyNormMul(
          {work_.gate_up.data(), work_.mlp.data(), rows, width, {w[0], w[1], w[2]}, bias},
          parts_.isa, pool_);
      break;
    }
  }
  cpu::Linear(layer.down,
              {.x = work_.mlp.data(), .rows = rows, .y = work_.hidden.data(), .accumulate = true},
              pool_);
}

// normed = rms-norm of the first `rows` rows of hidden.
void Decoder::Norm(const std::vector<float>& weight, int rows) {
  cpu::RmsNorm({work_.hidden.data(), weight.data(), work_.normed.data(), rows,
                parts_.config.hidden_size, parts_.config.rms_norm_eps},
               parts_.isa, pool_);
}

std::vector<float> Decoder::Lambdas() const {
  std::vector<float> lambdas;
  if (parts_.config.attention.lambda_kind != LambdaKind::kPerLayer) return lambdas;
  for (const LayerWeights& layer : parts_.weights.layers) lambdas.push_back(layer.lambda);
  return lambdas;
}

std::array<Decoder::Workspace::Sized, 8> Decoder::Workspace::PerRow(const ModelConfig& config) {
  const DiffSpec& spec = config.attention;
  return {{{&hidden, config.hidden_size},
           {&normed, config.hidden_size},
           {&qkv, spec.q_width() + spec.k_width() + spec.v_width()},
           {&q, spec.q_width()},
           {&lambda, spec.lambda_kind == LambdaKind::kPerTokenHead ? spec.num_q1_heads : 0},
           {&attention, spec.out_width()},
           {&gate_up, 2 * config.intermediate_size},
           {&mlp, config.intermediate_size}}};
}

void Decoder::Workspace::Reserve(const ModelConfig& config, size_t rows) {
  for (const auto& [buffer, width] : PerRow(config)) {
    buffer->resize(std::max(buffer->size(), rows * static_cast<size_t>(width)));
  }
}

size_t Decoder::ActivationBytesPerRow(const ModelConfig& config) {
  size_t floats = 0;
  for (const auto& [buffer, width] : Workspace().PerRow(config))
    floats += static_cast<size_t>(width);
  return floats * sizeof(float);
}

}  // namespace diffserve
