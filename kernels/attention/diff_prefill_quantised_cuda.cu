// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/attention_launch.cuh"
#include "kernels/attention/diff_prefill.cuh"

namespace diffserve::cuda {
namespace {

struct QuantisedPrefillInstance {
  int head_dim;
  int v_dim;
  int k_maps;
  void (*kernel)(AttentionLaunch);

  template <typename Codec, int kHeadDim, int kVDim, int kKMaps>
  static constexpr QuantisedPrefillInstance Of() {
    return {kHeadDim, kVDim, kKMaps, DiffPrefillQuantisedKernel<Codec, kHeadDim, kVDim, kKMaps>};
  }
};

const CodecInstances<QuantisedPrefillInstance> kTable[] = {
    {DType::kBFloat16, kHeadShapes<BFloat16Codec, QuantisedPrefillInstance>},
    {DType::kInt8, kHeadShapes<Int8Codec, QuantisedPrefillInstance>},
    {DType::kInt8KInt4V, kHeadShapes<Int8KInt4VCodec, QuantisedPrefillInstance>},
    {DType::kInt4, kHeadShapes<Int4Codec, QuantisedPrefillInstance>},
    {DType::kFp8E4M3, kHeadShapes<Fp8E4M3Codec, QuantisedPrefillInstance>},
};

}  // namespace

void (*FindQuantisedPrefill(const DiffSpec& spec, DType dtype))(AttentionLaunch) {
  return FindInstance(kTable, spec, dtype)->kernel;
}

}  // namespace diffserve::cuda
