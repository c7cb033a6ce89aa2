// SPDX-License-Identifier: Apache-2.0
#include "models/decoder_cuda.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/attention/attention_plan_cuda.h"
#include "kernels/attention/diff_attention.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/rope_append.h"
#include "kernels/ops/rowwise.h"
#include "models/step_observer_cuda.h"

namespace diffserve::cuda {
namespace {

// Tokens [begin, num_tokens) of a product.
template <typename Y>
LinearArgs<BFloat16, Y> TokensFrom(LinearArgs<BFloat16, Y> args, int begin,
                                   const PackedLinear& weight) {
  args.x += begin * args.XStride(weight.in_features());
  args.y += begin * int64_t{weight.out_features()};
  args.num_tokens -= begin;
  return args;
}

}  // namespace

Status Decoder::Forward(const DeviceStep& step, KvCache& kv, int first_logit_row,
                        StepObserver* observer) {
  const Workspace& work = parts_.work;
  Begin(step);
  observer_ = observer;

  // Stage 1: the residual stream begins with the tokens' embeddings.
  DS_RETURN_IF_ERROR(EmbeddingLookup(parts_.weights.embedding,
                                     {.tokens = step.tokens,
                                      .out = work.hidden.as<float>(),
                                      .num_tokens = rows_.tokens,
                                      .drawn = &work.sampled.as<SampledToken>()->token,
                                      .drawn_stride = sizeof(SampledToken) / sizeof(int32_t)},
                                     stream_));

  // Stage 2: the layers add to it.
  for (int l = 0; l < parts_.config.num_layers; ++l) {
    const Weights::Layer& layer = parts_.weights.layers[static_cast<size_t>(l)];
    switch (parts_.config.layers[static_cast<size_t>(l)].mixer) {
      case MixerKind::kAttention:
        DS_RETURN_IF_ERROR(Attention(l, step, kv));
        break;
      case MixerKind::kMamba:
        DS_RETURN_IF_ERROR(Mamba(l, step, kv));
        break;
      case MixerKind::kGatedMemory:
        DS_RETURN_IF_ERROR(GatedMemory(layer));
        break;
    }
    DS_RETURN_IF_ERROR(Mlp(l, step, kv));
  }

  // Stage 3: the final state of the tokens whose logits are wanted.
  BFloat16* final_state = work.final_state.as<BFloat16>() +
                          static_cast<int64_t>(first_logit_row) * parts_.config.hidden_size;
  const Weights& weights = parts_.weights;
  if (observer != nullptr && observer->wants_states()) {
    DS_RETURN_IF_ERROR(Norm(weights.final_norm, weights.final_norm_bias,
                            {.count = rows_.tokens, .out = work.normed.as<BFloat16>()}));
    DS_RETURN_IF_ERROR(observer->OnStates(work.normed));
  }
  return Norm(weights.final_norm, weights.final_norm_bias,
              {.count = step.num_logit_rows, .out = final_state, .indices = step.logit_rows});
}

void Decoder::Begin(const DeviceStep& step) {
  rows_ = {step.rows.all.num_tokens, false, step.rows, step.in_windows};
}

// From here on nothing is kept of a token. So only tokens whose logits are wanted, and those after
// them in their sequences, are computed. These come first.
void Decoder::Narrow(const DeviceStep& step) {
  if (step.num_wanted_tokens == rows_.tokens) return;  // as in every decode
  rows_ = {step.num_wanted_tokens, true, step.Wanted(step.rows), step.Wanted(step.in_windows)};
}

// hidden += W_o attention(norm(hidden)); K and V of the step's tokens are appended to their pages.
Status Decoder::Attention(int l, const DeviceStep& step, KvCache& kv) {
  const Workspace& work = parts_.work;
  const Weights::Layer& layer = parts_.weights.layers[static_cast<size_t>(l)];
  const LayerConfig& kind = parts_.config.layers[static_cast<size_t>(l)];
  const DiffSpec& spec = parts_.config.attention;
  const PagedKv pages = kv.Layer(kind.kv);
  // Stage 1: q, k and v. Their product may be one with the next stage.
  const bool has_lambdas = spec.lambda_kind == LambdaKind::kPerTokenHead;
  FewRowsNorm inside;
  DS_RETURN_IF_ERROR(NormFor({&layer.qkv, has_lambdas ? &layer.lambda_proj : &layer.qkv},
                             layer.input_norm, layer.input_norm_bias, &inside));
  // Stage 2: q and k are rotated, k and v go to their pages.
  DS_RETURN_IF_ERROR(QueriesAndPages(l, pages, inside));
  if (l == parts_.config.last_keeping_layer() && observer_ == nullptr) Narrow(step);

  // Stage 3: lambda of each token and head, if the family has it.
  if (has_lambdas) {
    DS_RETURN_IF_ERROR(Multiply<float>(
        layer.lambda_proj,
        {.x = work.normed.as<BFloat16>(), .num_tokens = rows_.tokens, .y = work.lambda.as<float>()},
        {inside}));
    DS_RETURN_IF_ERROR(
        Sigmoid({work.lambda.as<float>(), int64_t{rows_.tokens} * spec.num_q1_heads}, stream_));
  }

  // Stage 4: attention over the pages.
  DiffAttentionArgs<BFloat16> attention;
  attention.spec = spec;
  attention.kv = pages;
  attention.q = work.q.as<BFloat16>();
  attention.out = work.attention.as<BFloat16>();
  attention.scale = 1.0f / std::sqrt(static_cast<float>(spec.head_dim));
  attention.lambda = layer.lambda;
  attention.lambda_rows = work.lambda.as<float>();
  attention.sub_norm_weight = layer.sub_norm.as<float>();
  attention.out_scale = layer.out_scale;
  attention.window = kind.window;
  attention.logit_quant = parts_.logit_quant;
  if (observer_ != nullptr) DS_RETURN_IF_ERROR(observer_->OnAttention(l, attention));
  DS_RETURN_IF_ERROR(Attend(attention, step));

  // Stage 5: its output joins the residual stream.
  return AddToHidden(layer, work.attention);
}

RopeAppendArgs<BFloat16> Decoder::AppendOf(int l, const PagedKv& pages) const {
  const LayerConfig& kind = parts_.config.layers[static_cast<size_t>(l)];
  RopeAppendArgs<BFloat16> append;
  append.spec = parts_.config.attention;
  append.batch = (kind.window > 0 ? rows_.in_windows : rows_.sequences).all;
  append.kv = pages;
  append.rope = parts_.rope;
  append.style = parts_.config.rope.style;
  append.has_kv = !kind.shares_kv;
  append.qkv = parts_.work.qkv.as<BFloat16>();
  append.q = parts_.work.q.as<BFloat16>();
  return append;
}

Status Decoder::QueriesAndPages(int l, const PagedKv& pages, const FewRowsNorm& inside) {
  const Workspace& work = parts_.work;
  const Weights::Layer& layer = parts_.weights.layers[static_cast<size_t>(l)];
  const LinearArgs<BFloat16> all = {
      .x = work.normed.as<BFloat16>(), .num_tokens = rows_.tokens, .y = work.qkv.as<BFloat16>()};
  // The pages that attention reads pass the L2 cache as well. Those of few tokens leave room.
  FewRowsNext out;
  if (rows_.tokens <= kFewRowsNormTokens) out = Next(layer.mixer_out);
  RopeAppendArgs<BFloat16> append = AppendOf(l, pages);
  if (!FewRowsAppendTo(pages.format.codec.dtype)) {
    DS_RETURN_IF_ERROR(Multiply(layer.qkv, all, {.inside = inside, .next = out}));
    return RopeAppend(append, stream_);
  }
  // Few-row products end with the rotation, and write K and V.
  append.first_row = FewRowsOf(layer.qkv, rows_.tokens);
  if (append.first_row < rows_.tokens) {
    DS_RETURN_IF_ERROR(
        Linear(layer.qkv, TokensFrom(all, append.first_row, layer.qkv), *parts_.matrices, stream_));
    DS_RETURN_IF_ERROR(RopeAppend(append, stream_));
  }
  if (append.first_row == 0) return Status();
  const int generated = std::exchange(append.first_row, 0);
  return LinearAppendFewRows(layer.qkv, {.x = all.x, .num_tokens = generated}, append,
                             {.few_rows = *parts_.few_rows,
                              .norm = inside,
                              .next = out,
                              .follows_kernel = generated == rows_.tokens},
                             stream_);
}

// Generated tokens and prompt tokens, each by its own kernel.
Status Decoder::Attend(DiffAttentionArgs<BFloat16> attention, const DeviceStep& step) {
  const Workspace& work = parts_.work;
  const StepRows& rows = attention.window > 0 ? rows_.in_windows : rows_.sequences;
  const DeviceStep::Plans& plans = step.PlansOf(attention.window);
  AttentionSchedule schedule;
  schedule.partials = work.partials.as<float>();
  schedule.counters = work.counters.as<uint32_t>();
  schedule.extents = work.extents.as<float>();

  attention.batch = rows.generated;
  schedule.tiling = plans.tilings.generated;
  schedule.plan = plans.generated;
  schedule.follows_kernel = observer_ == nullptr;  // it may have queued copies
  DS_RETURN_IF_ERROR(DiffAttention(attention, schedule, stream_));

  attention.batch = rows.prompts;
  schedule.tiling = plans.tilings.prompts;
  schedule.follows_kernel = false;
  for (const auto& [plan, pages] : rows_.are_wanted ? plans.wanted_prompts : plans.prompts) {
    schedule.plan = plan;
    schedule.widened = work.WidenedFor(pages.first_page, pages.num_pages);
    DS_RETURN_IF_ERROR(DiffAttention(attention, schedule, stream_));
  }
  return Status();
}

Status Decoder::AddToHidden(const Weights::Layer& layer, const DeviceBuffer& mixed) {
  const FewRowsForm form = parts_.config.mlp == MlpKind::kSwiGlu ? FewRowsForm::kSiluMul
                                                                 : FewRowsForm::kStore;
  return Multiply<float>(layer.mixer_out,
                         {.x = mixed.as<BFloat16>(),
                          .num_tokens = rows_.tokens,
                          .y = parts_.work.hidden.as<float>(),
                          .accumulate = true},
                         {.next = Next(layer.gate_up, /*has_norm=*/true, form)});
}

// mlp = act(W_gate x) * W_up x with x = norm(hidden)
Status Decoder::GateTimesUp(const Weights::Layer& layer) {
  const Workspace& work = parts_.work;
  const int width = parts_.config.intermediate_size;
  const LinearArgs<BFloat16> all = {.x = work.normed.as<BFloat16>(),
                                    .num_tokens = rows_.tokens,
                                    .y = work.gate_up.as<BFloat16>()};
  auto* mlp = work.mlp.as<BFloat16>();
  FewRowsNorm inside;
  DS_RETURN_IF_ERROR(NormFor({&layer.gate_up}, layer.post_attention_norm,
                             layer.post_attention_norm_bias, &inside));
  // Stage 1: gate and up. With SiLU, few-row products end with the activation.
  const bool is_silu = parts_.config.mlp == MlpKind::kSwiGlu;
  const int fused = is_silu ? FewRowsOf(layer.gate_up, rows_.tokens) : 0;
  if (fused > 0) {
    DS_RETURN_IF_ERROR(LinearSiluMulFewRows(layer.gate_up,
                                            {.x = all.x, .num_tokens = fused, .y = mlp},
                                            {.few_rows = *parts_.few_rows,
                                             .norm = inside,
                                             .next = Next(layer.down),
                                             .follows_kernel = true},
                                            stream_));
  }
  if (fused == rows_.tokens) return Status();
  const LinearArgs<BFloat16> rest = TokensFrom(all, fused, layer.gate_up);
  DS_RETURN_IF_ERROR(
      fused > 0 ? Linear(layer.gate_up, rest, *parts_.matrices, stream_)
                : Multiply(layer.gate_up, rest, {.inside = inside, .next = NextDown(layer)}));

  // Stage 2: the activation. The last product computes that of few tokens by itself.
  if (PolyInside(layer).x != nullptr) return Status();
  mlp += fused * int64_t{width};
  switch (parts_.config.mlp) {
    case MlpKind::kSwiGlu:
      return SiluMul({rest.y, mlp, rest.num_tokens, width}, stream_);
    case MlpKind::kPolyNorm: {
      return PolyNormMul(PolyOf(layer, rest.y, mlp, rest.num_tokens), stream_);
    }
  }
  return Status();
}

PolyNormMulArgs<BFloat16> Decoder::PolyOf(const Weights::Layer& layer, const BFloat16* gate_up,
                                          BFloat16* out, int num_tokens) const {
  const auto& [w, bias] = layer.poly_norm;
  return {gate_up, out, num_tokens, parts_.config.intermediate_size, {w[0], w[1], w[2]}, bias};
}

PolyNormMulArgs<BFloat16> Decoder::PolyInside(const Weights::Layer& layer) const {
  const int tokens = rows_.tokens;
  if (parts_.config.mlp != MlpKind::kPolyNorm || tokens > kFewRowsPolyTokens ||
      FewRowsOf(layer.down, tokens) < tokens) {
    return {};
  }
  return PolyOf(layer, parts_.work.gate_up.as<BFloat16>(), nullptr, tokens);
}

FewRowsNext Decoder::NextDown(const Weights::Layer& layer) const {
  FewRowsNext next = Next(layer.down);
  next.poly = PolyInside(layer);
  return next;
}

// hidden += W_down (act(W_gate x) * W_up x) with x = norm(hidden); act is SiLU or PolyNorm.
Status Decoder::Mlp(int l, const DeviceStep& step, KvCache& kv) {
  const Workspace& work = parts_.work;
  const Weights::Layer& layer = parts_.weights.layers[static_cast<size_t>(l)];
  DS_RETURN_IF_ERROR(GateTimesUp(layer));
  // Stage 3: down joins the residual stream.
  return Multiply<float>(layer.down,
                         {.x = work.mlp.as<BFloat16>(),
                          .num_tokens = rows_.tokens,
                          .y = work.hidden.as<float>(),
                          .accumulate = true},
                         {.poly = PolyInside(layer), .next = NextAfterLayer(l, step, kv)});
}

int Decoder::FewRowsOf(const PackedLinear& weight, int num_tokens) const {
  if (!parts_.few_rows || !TakesFewRows(weight)) return 0;
  if (parts_.matrices->batch_invariant())
    return std::min(rows_.sequences.generated.num_tokens, num_tokens);
  return num_tokens <= FewRowsAtBest(weight, *parts_.few_rows) ? num_tokens : 0;
}

template <typename Y>
Status Decoder::Multiply(const PackedLinear& weight, const LinearArgs<BFloat16, Y>& args,
                         const MultiplyUse& use) {
  // Few-row products read 16 bytes of x at a time.
  const bool has_aligned_rows = args.XStride(weight.in_features()) % 8 == 0;
  const int few = has_aligned_rows ? FewRowsOf(weight, args.num_tokens) : 0;
  if (few < args.num_tokens) {
    // cuBLASLt's rows begin at multiples of 16 bytes. So it may compute the others' too, and they
    // are computed again.
    const bool is_aligned = few * int64_t{weight.out_features()} * sizeof(Y) % 16 == 0;
    DS_CHECK(is_aligned || !args.accumulate, "rows of the residual stream are aligned");
    DS_RETURN_IF_ERROR(
        Linear(weight, TokensFrom(args, is_aligned ? few : 0, weight), *parts_.matrices, stream_));
  }
  if (few == 0) return Status();
  LinearArgs<BFloat16, Y> generated = args;
  generated.num_tokens = few;
  return LinearFewRows(weight, generated,
                       {*parts_.few_rows, use.inside, use.poly, use.next, few == args.num_tokens},
                       stream_);
}
template Status Decoder::Multiply(const PackedLinear&, const LinearArgs<BFloat16, BFloat16>&,
                                  const MultiplyUse&);
template Status Decoder::Multiply(const PackedLinear&, const LinearArgs<BFloat16, float>&,
                                  const MultiplyUse&);

FewRowsNext Decoder::Next(const PackedLinear& weight, bool has_norm, FewRowsForm form) const {
  const int tokens = rows_.tokens;
  if (tokens == 0 || FewRowsOf(weight, tokens) < tokens) return {};
  FewRowsNext next = {.weight = &weight, .num_tokens = tokens, .form = form};
  if (has_norm && tokens <= kFewRowsNormTokens) next.norm.rows = parts_.work.hidden.as<float>();
  return next;
}

FewRowsNext Decoder::NextAfterLayer(int l, const DeviceStep& step, KvCache& kv) const {
  const size_t after = static_cast<size_t>(l) + 1;
  if (after < parts_.weights.layers.size()) {
    const Weights::Layer& layer = parts_.weights.layers[after];
    const LayerConfig& kind = parts_.config.layers[after];
    if (kind.mixer != MixerKind::kAttention) return Next(layer.in_proj, /*has_norm=*/true);
    const PagedKv pages = kv.Layer(kind.kv);
    if (!FewRowsAppendTo(pages.format.codec.dtype)) return Next(layer.qkv, /*has_norm=*/true);
    FewRowsNext next = Next(layer.qkv, /*has_norm=*/true, FewRowsForm::kAppend);
    next.pairs = FewRowsPairs::Of(AppendOf(static_cast<int>(after), pages));
    return next;
  }
  const int count = std::min(step.num_sample_rows, parts_.work.logits_rows);
  if (count == 0 || !LogitsTakeFewRows(count)) return {};
  return {.weight = &parts_.weights.lm_head, .num_tokens = count};
}

// rows.out[t] = norm of row rows.begin + t of hidden, or of row indices[t].
Status Decoder::Norm(const DeviceBuffer& weight, const DeviceBuffer& bias, const NormRows& rows) {
  const int width = parts_.config.hidden_size;
  const auto* hidden = parts_.work.hidden.as<float>() + rows.begin * int64_t{width};
  const auto* scale = weight.as<float>();
  const float eps = parts_.config.norm_eps;
  switch (parts_.config.norm) {
    case NormKind::kRmsNorm:
      return RmsNorm({hidden, scale, rows.out, rows.count, width, eps, rows.indices}, stream_);
    case NormKind::kLayerNorm:
      return LayerNorm(
          {hidden, scale, bias.as<float>(), rows.out, rows.count, width, eps, rows.indices},
          stream_);
  }
  return Status();
}

Status Decoder::NormFor(std::initializer_list<const PackedLinear*> readers,
                        const DeviceBuffer& weight, const DeviceBuffer& bias, FewRowsNorm* inside) {
  int few = kFewRowsNormTokens + 1;
  for (const PackedLinear* reader : readers) few = std::min(few, FewRowsOf(*reader, rows_.tokens));
  if (few > kFewRowsNormTokens) few = 0;
  if (few > 0) {
    const bool is_layer_norm = parts_.config.norm == NormKind::kLayerNorm;
    *inside = {parts_.work.hidden.as<float>(), weight.as<float>(),
               is_layer_norm ? bias.as<float>() : nullptr, parts_.config.norm_eps};
  }
  if (few == rows_.tokens) return Status();
  return Norm(weight, bias,
              {few, rows_.tokens - few,
               parts_.work.normed.as<BFloat16>() + few * int64_t{parts_.config.hidden_size}});
}

Status Decoder::SampleAll(const DeviceStep& step) {
  const Workspace& work = parts_.work;
  const int count = step.num_sample_rows;
  const int slice = work.logits_rows;
  for (int first = 0; first < count; first += slice) {
    const int rows = std::min(slice, count - first);
    DS_RETURN_IF_ERROR(LogitsOf(first, rows, /*follows_kernel=*/true));
    DS_RETURN_IF_ERROR(Sample({.logits = work.logits.as<float>(),
                               .vocab_size = parts_.config.vocab_size,
                               .num_rows = rows,
                               .tasks = step.sample_rows + first,
                               .adjustments = step.adjustments,
                               .masks = step.masks,
                               .sampled = work.sampled.as<SampledToken>() + first},
                              stream_));
  }
  return Status();
}

// work.logits = the logits of final states [first, first + count).
Status Decoder::LogitsOf(int first, int count, bool follows_kernel) {
  const Workspace& work = parts_.work;
  const BFloat16* x = work.final_state.as<BFloat16>() +
                      static_cast<int64_t>(first) * parts_.config.hidden_size;
  const PackedLinear& weight = parts_.weights.lm_head;
  const LinearArgs<BFloat16, float> args = {
      .x = x, .num_tokens = count, .y = work.logits.as<float>()};
  if (LogitsTakeFewRows(count))
    return LinearFewRows(weight, args,
                         {.few_rows = *parts_.few_rows, .follows_kernel = follows_kernel}, stream_);
  return Linear(weight, args, *parts_.matrices, stream_);
}

// The last token of a prompt draws like a generated one.
bool Decoder::LogitsTakeFewRows(int count) const {
  const PackedLinear& weight = parts_.weights.lm_head;
  return parts_.few_rows && TakesFewRows(weight) &&
         (parts_.matrices->batch_invariant() || count <= FewRowsAtBest(weight, *parts_.few_rows));
}

}  // namespace diffserve::cuda
