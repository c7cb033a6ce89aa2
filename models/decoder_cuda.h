// SPDX-License-Identifier: Apache-2.0
// The forward pass of models/decoder.h on a CUDA device, function by function the same. It queues
// its work and waits for none of it.
//
// Matrices, activations and, unless they are codes, KV pages are bfloat16. The residual stream,
// lambda, norms' sums and logits are float32.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/attention/diff_attention.h"
#include "kernels/ops/few_rows_cuda.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/matrix_library.h"
#include "kernels/ops/weight_packer_cuda.h"
#include "models/kv_cache.h"
#include "models/step_batch_cuda.h"
#include "models/weights.h"
#include "models/workspace_cuda.h"

namespace diffserve::cuda {

class StepObserver;

using Weights = DecoderWeights<EmbeddingTable, PackedLinear, DeviceBuffer>;

class Decoder {
 public:
  struct Parts {
    ModelConfig config;
    LogitQuant logit_quant;
    Weights weights;
    DeviceBuffer cos, sin;
    RopeAngles rope;  // cos and sin
    Workspace work;
    std::unique_ptr<MatrixLibrary> matrices;
    std::optional<FewRows> few_rows;  // with quantised weights, or if a token's bits may not
                                      // depend on the batch
  };
  Decoder(Parts parts, const Stream& stream) : parts_(std::move(parts)), stream_(stream) {}

  const ModelConfig& config() const { return parts_.config; }
  const Workspace& work() const { return parts_.work; }

  // Writes the final states of the step's logit rows from row `first_logit_row` on. An observer
  // sees the pass; the host waits for what it copies.
  Status Forward(const DeviceStep& step, KvCache& kv, int first_logit_row,
                 StepObserver* observer = nullptr);
  // Samples from final states [0, step.num_sample_rows) into work().sampled.
  Status SampleAll(const DeviceStep& step);
  // work().logits = the logits of final states [first, first + count). follows_kernel: the
  // operation before it on the stream is a kernel.
  Status LogitsOf(int first, int count, bool follows_kernel = false);
  std::vector<float> Lambdas() const { return parts_.weights.Lambdas(parts_.config); }

 private:
  // The tokens that a layer computes: the whole step or, after the last layer that keeps anything,
  // the tokens that come first in it.
  struct Rows {
    int tokens = 0;
    bool are_wanted = false;  // the tokens that come first
    StepRows sequences;
    StepRows in_windows;  // the same, with the pages of layers with a window
  };
  void Begin(const DeviceStep& step);
  void Narrow(const DeviceStep& step);
  Status Attention(int l, const DeviceStep& step, KvCache& kv);
  // work.q, and K and V in their pages, of the layers' tokens.
  Status QueriesAndPages(int l, const PagedKv& pages, const FewRowsNorm& inside);
  RopeAppendArgs<BFloat16> AppendOf(int l, const PagedKv& pages) const;
  Status Attend(DiffAttentionArgs<BFloat16> attention, const DeviceStep& step);
  Status Mamba(int l, const DeviceStep& step, KvCache& kv);
  Status Scan(int l, const DeviceStep& step, KvCache& kv);
  Status GatedMemory(const Weights::Layer& layer);
  Status AddToHidden(const Weights::Layer& layer, const DeviceBuffer& mixed);
  Status Mlp(int l, const DeviceStep& step, KvCache& kv);
  Status GateTimesUp(const Weights::Layer& layer);
  PolyNormMulArgs<BFloat16> PolyOf(const Weights::Layer& layer, const BFloat16* gate_up,
                                   BFloat16* out, int num_tokens) const;
  // What the product that reads PolyNorm's result computes by itself; without x: nothing.
  PolyNormMulArgs<BFloat16> PolyInside(const Weights::Layer& layer) const;
  FewRowsNext NextDown(const Weights::Layer& layer) const;
  // The number of the first `num_tokens` rows that few-row products compute.
  int FewRowsOf(const PackedLinear& weight, int num_tokens) const;
  // For the layers' tokens: the first FewRowsOf take few-row products, the others the library's. If
  // a token's bits may not depend on the batch, those are the generated ones.
  struct MultiplyUse {
    FewRowsNorm inside = {};
    PolyNormMulArgs<BFloat16> poly = {};
    FewRowsNext next = {};
  };
  template <typename Y>
  Status Multiply(const PackedLinear& weight, const LinearArgs<BFloat16, Y>& args,
                  const MultiplyUse& use = {});
  // The layers' next product, if few-row products compute all of it. With a norm: of hidden.
  FewRowsNext Next(const PackedLinear& weight, bool has_norm = false,
                   FewRowsForm form = FewRowsForm::kStore) const;
  // The first product after layer l: the next layer's, or that with the output matrix.
  FewRowsNext NextAfterLayer(int l, const DeviceStep& step, KvCache& kv) const;
  // Whether `count` tokens have their logits computed by few-row products.
  bool LogitsTakeFewRows(int count) const;
  // Rows of hidden and where their norms go.
  struct NormRows {
    int begin = 0;
    int count = 0;
    BFloat16* out = nullptr;
    const int32_t* indices = nullptr;
  };
  Status Norm(const DeviceBuffer& weight, const DeviceBuffer& bias, const NormRows& rows);
  // work.normed of the layers' tokens, but for those whose products with all of `readers` compute
  // it by themselves, by `*inside`.
  Status NormFor(std::initializer_list<const PackedLinear*> readers, const DeviceBuffer& weight,
                 const DeviceBuffer& bias, FewRowsNorm* inside);

  const Parts parts_;
  const Stream& stream_;
  Rows rows_;
  StepObserver* observer_ = nullptr;  // of the pass
};

}  // namespace diffserve::cuda
