// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/attention_launch.cuh"
#include "kernels/attention/diff_decode_extents.cuh"

namespace diffserve::cuda {
namespace {

struct QuantisedDecodeInstance {
  int head_dim;
  int v_dim;
  int k_maps;
  QuantisedDecode kernels;  // cp.async

  template <typename Codec, int kHeadDim, int kVDim, int kKMaps>
  static constexpr QuantisedDecodeInstance Of() {
    return {kHeadDim,
            kVDim,
            kKMaps,
            {DiffDecodeExtentsKernel<Codec, kHeadDim, kVDim, kKMaps>,
             DiffDecodeQuantisedKernel<Codec, kHeadDim, kVDim, kKMaps>}};
  }
};

const CodecInstances<QuantisedDecodeInstance> kTable[] = {
    {DType::kBFloat16, kHeadShapes<BFloat16Codec, QuantisedDecodeInstance>},
    {DType::kInt8, kHeadShapes<Int8Codec, QuantisedDecodeInstance>},
    {DType::kInt8KInt4V, kHeadShapes<Int8KInt4VCodec, QuantisedDecodeInstance>},
    {DType::kInt4, kHeadShapes<Int4Codec, QuantisedDecodeInstance>},
    {DType::kFp8E4M3, kHeadShapes<Fp8E4M3Codec, QuantisedDecodeInstance>},
};

}  // namespace

QuantisedDecode FindQuantisedDecode(const DiffSpec& spec, DType dtype) {
  return FindInstance(kTable, spec, dtype)->kernels;
}

}  // namespace diffserve::cuda
