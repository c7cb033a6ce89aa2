// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>

#include "kernels/attention/attention_launch.cuh"
#include "kernels/attention/widen_pages.cuh"

namespace diffserve::cuda {
namespace {

struct WidenInstance {
  DType dtype;
  void (*kernel)(WidenCall);
};
const WidenInstance kInstances[] = {{DType::kInt8, WidenPagesKernel<Int8Codec>},
                                    {DType::kInt8KInt4V, WidenPagesKernel<Int8KInt4VCodec>},
                                    {DType::kInt4, WidenPagesKernel<Int4Codec>},
                                    {DType::kFp8E4M3, WidenPagesKernel<Fp8E4M3Codec>}};

}  // namespace

Status WidenPages(const DiffAttentionArgs<BFloat16>& args, const GroupRange& groups,
                  const WidenedPages& to, const PagedKv& widened, const Stream& stream) {
  const KvFormat& format = args.kv.format;
  const auto* instance = std::ranges::find(kInstances, format.codec.dtype, &WidenInstance::dtype);
  if (instance == std::end(kInstances)) return NoKernel();
  const float v_factor = format.codec.transforms_v()
                             ? HadamardFactor(format.head_dim & -format.head_dim)
                             : 1.0f;
  return Launch(
      "widening pages",
      {.grid = dim3(static_cast<unsigned>(to.num_pages), static_cast<unsigned>(groups.count)),
       .threads = dim3(kWidenThreads)},
      stream, instance->kernel,
      WidenCall{.batch = args.batch,
                .window = WindowSlots(args.window),
                .codes = args.kv,
                .widened = widened,
                .first_page = to.first_page,
                .widened_ids = to.ids,
                .first_group = groups.first,
                .v_factor = v_factor});
}

}  // namespace diffserve::cuda
