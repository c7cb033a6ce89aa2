#include "kernels/attention/attention_launch.cuh"
#include "kernels/attention/diff_decode_extents.cuh"

namespace diffserve::cuda {
namespace {

struct QuantisedInstance {
  int head_dim;
  int v_dim;
  int k_maps;
  QuantisedDecode kernels;  // cp.async

  template <typename Codec, int kHeadDim, int kVDim, int kKMaps>
  static constexpr QuantisedInstance Of() {
    return {kHeadDim,
            kVDim,
            kKMaps,
            {DiffDecodeExtentsKernel<Codec, kHeadDim, kVDim, kKMaps>,
             DiffDecodeQuantisedKernel<Codec, kHeadDim, kVDim, kKMaps>}};
  }
};

const CodecInstances<QuantisedInstance> kTable[] = {
    {DType::kBFloat16, kHeadShapes<BFloat16Codec, QuantisedInstance>},
    {DType::kInt8, kHeadShapes<Int8Codec, QuantisedInstance>},
    {DType::kInt8KInt4V, kHeadShapes<Int8KInt4VCodec, QuantisedInstance>},
    {DType::kInt4, kHeadShapes<Int4Codec, QuantisedInstance>},
    {DType::kFp8E4M3, kHeadShapes<Fp8E4M3Codec, QuantisedInstance>},
};

}  // namespace

QuantisedDecode FindQuantisedDecode(const DiffSpec& spec, DType dtype) {
  return FindInstance(kTable, spec, dtype)->kernels;
}

}  // namespace diffserve::cuda
