#include "kernels/attention/kv_format.h"

#include <algorithm>
#include <iterator>

#include "kernels/base/check.h"

namespace diffserve {
namespace {

struct ScalarCodec {
  KvCodec description;
  float (*value)(const std::byte* page, int offset);
  void (*set)(std::byte* page, int offset, float value);
};

template <typename Codec>
constexpr ScalarCodec ScalarOf() {
  using Element = typename Codec::Element;
  return {Codec::Description(),
          [](const std::byte* page, int offset) {
            return Codec::Decode(reinterpret_cast<const Element*>(page)[offset]);
          },
          [](std::byte* page, int offset, float value) {
            reinterpret_cast<Element*>(page)[offset] = Codec::Encode(value);
          }};
}

constexpr ScalarCodec kCodecs[] = {ScalarOf<Float32Codec>(), ScalarOf<BFloat16Codec>(),
                                   ScalarOf<Float16Codec>()};

const ScalarCodec& CodecOf(DType dtype) {
  const auto* found = std::ranges::find(
      kCodecs, dtype, [](const ScalarCodec& codec) { return codec.description.dtype; });
  DS_CHECK(found != std::end(kCodecs), "no codec of K and V has this dtype");
  return *found;
}

}  // namespace

KvFormat KvFormat::Of(const DiffSpec& spec, int page_size, DType dtype, KvArrangement arrangement) {
  return {page_size,  spec.num_kv_groups,         spec.k_maps, spec.head_dim,
          spec.v_dim, CodecOf(dtype).description, arrangement};
}

float KvValue(const KvFormat& format, const std::byte* page, int offset) {
  return CodecOf(format.codec.dtype).value(page, offset);
}

void SetKvValue(const KvFormat& format, std::byte* page, int offset, float value) {
  CodecOf(format.codec.dtype).set(page, offset, value);
}

}  // namespace diffserve
