// SPDX-License-Identifier: Apache-2.0
// Decoder: the forward pass of every family. Each layer has a norm, then attention over pages, a
// Mamba mixer or a gated memory unit, then a norm and a gated MLP. Families differ by data in the
// ModelConfig: the list of layers, norm, DiffSpec, head order and rope. A token's result depends
// only on the tokens before it in its sequence, not on the rest of the batch.
//
// The CUDA backend has the same functions in the same order (decoder_cuda.h).
//
// Thread safety: as Model; the pool's workers compute while the calling thread waits.
#pragma once

#include <utility>

#include "kernels/attention/diff_attention.h"
#include "kernels/ops/rope_append.h"
#include "kernels/ops/weight_packer.h"
#include "models/activations.h"
#include "models/model.h"
#include "models/state_waves.h"
#include "models/weights.h"

namespace diffserve::cpu {

using Weights = DecoderWeights<EmbeddingTable, PackedLinear, std::vector<float>>;

class Decoder : public Model {
 public:
  struct Parts {
    ModelConfig config;
    WeightFormat weight_format = WeightFormat::kFloat32;
    CpuIsa isa = kBaseCpuIsa;
    LogitQuant logit_quant;
    int max_positions = 0;
    StepLimits limits;
    WeightSizes sizes;
    Weights weights;
  };
  Decoder(Parts parts, ThreadPool& pool);

  const ModelConfig& config() const override { return parts_.config; }
  WeightFormat weight_format() const override { return parts_.weight_format; }
  Result<KvCache> MakeKvCache(std::vector<KvFormat> layers, const KvCacheSize& size) const override;
  Status Forward(const Batch& batch, KvCache& kv) override;
  Result<std::vector<SampledToken>> Collect() override { return std::exchange(sampled_, {}); }
  Result<std::span<const float>> Logits(int first, int count) override;
  std::vector<float> Lambdas() const override { return parts_.weights.Lambdas(parts_.config); }
  // Bytes of activations per token of a batch, without logits.
  static size_t ActivationBytesPerToken(const ModelConfig& config);
  size_t weight_bytes() const override { return parts_.sizes.step_bytes; }
  int64_t num_parameters() const override { return parts_.sizes.num_parameters; }

 private:
  // Its memory is allocated from the start and touched up to the largest batch seen. After Forward,
  // `normed` holds the final states of the batch's logit rows.
  struct Workspace : Activations<std::vector<float>> {
    std::vector<float> logits;                 // [rows of the last LogitsOf, vocab_size]
    std::vector<LogitAdjustment> adjustments;  // of the batch
    AttentionWorkspace attention_workspace;
  };

  // The tokens that a layer computes: the whole batch or, after the last layer that keeps anything,
  // the tokens whose logits are wanted and those after them in their sequences.
  struct Rows {
    int tokens = 0;
    std::vector<SequenceTokens> sequences;
    std::vector<SequenceTokens> in_windows;  // the same, with the pages of layers with a window
    std::vector<int32_t> logit_rows;
  };

  void Begin(const Batch& batch);
  void Narrow();
  void Attention(int l, const Batch& batch, KvCache& kv);
  void Mamba(int l, KvCache& kv);
  void Scan(int l, KvCache& kv);
  void GatedMemory(const Weights::Layer& layer);
  void AddToHidden(const Weights::Layer& layer, const std::vector<float>& mixed);
  void Mlp(const Weights::Layer& layer);
  void ShowStates(LayerObserver& observer);
  void Norm(const std::vector<float>& weight, const std::vector<float>& bias, int tokens,
            float* out, const int32_t* indices = nullptr);
  void SampleAll(const Batch& batch);
  std::span<const float> LogitsOf(int first, int count);

  Parts parts_;
  ThreadPool& pool_;
  RopeTable rope_;
  Workspace work_;
  Rows rows_;
  StateWaves state_waves_;  // of the batch's sequences, if layers have states
  int num_logit_rows_ = 0;  // of the last Forward
  std::vector<SampledToken> sampled_;
};

}  // namespace diffserve::cpu
