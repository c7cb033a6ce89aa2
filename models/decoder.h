// Decoder: the forward pass of every family on one page (rms-norm, attention over pages, gated
// MLP). What differs between families is data: DiffSpec, head order and rope in the ModelConfig.
// All operations treat a row on its own, so a row's result does not depend on the batch it is in.
//
// Thread safety: one thread, the engine's.
#pragma once

#include <array>
#include <utility>

#include "kernels/ops/rope_append.h"
#include "models/model.h"
#include "models/weights.h"

namespace diffserve {

class Decoder : public Model {
 public:
  struct Parts {
    ModelConfig config;
    WeightFormat weight_format = WeightFormat::kFloat32;
    CpuIsa isa = CpuIsa::kAvx2;
    int max_positions = 0;
    WeightSizes sizes;
    DecoderWeights weights;
  };
  Decoder(Parts parts, ThreadPool& pool);

  const ModelConfig& config() const override { return parts_.config; }
  WeightFormat weight_format() const override { return parts_.weight_format; }
  Result<KvCache> MakeKvCache(const KvFormat& format, int num_pages) const override;
  Status Forward(const Batch& batch, KvCache& kv) override;
  Result<std::vector<SampledToken>> Collect() override { return std::exchange(sampled_, {}); }
  Result<std::span<const float>> Logits(int first, int count) override;
  Status CopyPage(KvCache& kv, int32_t from, int32_t to) override;
  std::vector<float> Lambdas() const override;
  // Activations that one row of a batch needs, its logits not counted.
  static size_t ActivationBytesPerRow(const ModelConfig& config);
  size_t weight_bytes() const override { return parts_.sizes.step_bytes; }
  int64_t num_parameters() const override { return parts_.sizes.num_parameters; }

 private:
  // Activations, float32, row-major. They grow to the largest batch seen.
  struct Workspace {
    std::vector<float> hidden;  // [rows, hidden_size], the residual stream
    std::vector<float> normed;  // [rows, hidden_size]; after Forward: the final state of its logit
                                // rows
    std::vector<float> qkv;     // [rows, q_width + k_width + v_width]
    std::vector<float> q;       // [rows, q_width], rotated
    std::vector<float> lambda;  // [rows, num_q1_heads], LambdaKind::kPerTokenHead
    std::vector<float> attention;              // [rows, out_width]
    std::vector<float> gate_up;                // [rows, 2 * intermediate_size]
    std::vector<float> mlp;                    // [rows, intermediate_size]
    std::vector<float> logits;                 // [rows of the last Logits, vocab_size]
    std::vector<LogitAdjustment> adjustments;  // of the batch

    struct Sized {
      std::vector<float>* buffer;
      int width;
    };
    std::array<Sized, 8> PerRow(const ModelConfig& config);  // all but the logits
    void Reserve(const ModelConfig& config, size_t rows);
  };

  void Attention(const LayerWeights& layer, const Batch& batch, const PagedKv& kv);
  void Mlp(const LayerWeights& layer, int rows);
  void Norm(const std::vector<float>& weight, int rows);
  std::span<const float> LogitsOf(int first, int count);
  void SampleAll(const Batch& batch);

  Parts parts_;
  ThreadPool& pool_;
  RopeTable rope_;
  Workspace work_;
  int num_logit_rows_ = 0;  // of the last Forward
  std::vector<SampledToken> sampled_;
};

}  // namespace diffserve
