// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/diff_prefill_sm90a_table.cuh"

namespace diffserve::cuda {
namespace {

const CodecInstances<HopperInstance> kTable[] = {
    {DType::kInt8, kHopperShapes<Int8Codec>},
    {DType::kInt8KInt4V, kHopperShapes<Int8KInt4VCodec>},
    {DType::kInt4, kHopperShapes<Int4Codec>},
    {DType::kFp8E4M3, kHopperShapes<Fp8E4M3Codec>},
};

}  // namespace

const HopperInstance* FindHopperCodes(const DiffSpec& spec, DType dtype) {
  return FindInstance(kTable, spec, dtype);
}

}  // namespace diffserve::cuda
