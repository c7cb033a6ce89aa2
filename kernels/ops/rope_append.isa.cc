// Element by element, so any vectorisation by the compiler gives the same bits.
#include "kernels/base/simd.h"
#include "kernels/ops/rope_kernel.h"

namespace diffserve::DS_ISA {
namespace {

constexpr int kMaxHeadDim = 1024;

void Rotate(const RopeRow& row, const float* x, float* out) {
  const int half = row.head_dim / 2;
  if (row.interleaved) {
    for (int i = 0; i < half; ++i) {
      const float a = x[2 * i];
      const float b = x[2 * i + 1];
      out[2 * i] = a * row.cos[i] - b * row.sin[i];
      out[2 * i + 1] = b * row.cos[i] + a * row.sin[i];
    }
    return;
  }
  for (int i = 0; i < half; ++i) {
    const float a = x[i];
    const float b = x[i + half];
    out[i] = a * row.cos[i] - b * row.sin[i];
    out[i + half] = b * row.cos[i] + a * row.sin[i];
  }
}

void StoreK(const RopeRow& row, std::byte* k_map, const float* rotated) {
  if (row.is_bf16) {
    uint16_t* to = reinterpret_cast<uint16_t*>(k_map) + 2 * row.slot;
    for (int d = 0; d < row.head_dim; d += 2, to += 2 * row.page_size) {
      to[0] = FloatToBFloat16(rotated[d]);
      to[1] = FloatToBFloat16(rotated[d + 1]);
    }
  } else {
    float* to = reinterpret_cast<float*>(k_map) + row.slot;
    for (int d = 0; d < row.head_dim; ++d, to += row.page_size) *to = rotated[d];
  }
}

void StoreV(const RopeRow& row, std::byte* v_part, const float* v) {
  const int64_t offset = static_cast<int64_t>(row.slot) * row.v_dim;
  if (row.is_bf16) {
    uint16_t* to = reinterpret_cast<uint16_t*>(v_part) + offset;
    for (int d = 0; d < row.v_dim; ++d) to[d] = FloatToBFloat16(v[d]);
  } else {
    float* to = reinterpret_cast<float*>(v_part) + offset;
    for (int d = 0; d < row.v_dim; ++d) to[d] = v[d];
  }
}

}  // namespace

void RotateAndAppend(const RopeRow& row);
void RotateAndAppend(const RopeRow& row) {
  for (int head = 0; head < row.num_q_heads; ++head)
    Rotate(row, row.qkv + head * row.head_dim, row.q + head * row.head_dim);
  const float* k = row.qkv + row.num_q_heads * row.head_dim;
  const float* v = k + row.num_groups * row.k_maps * row.head_dim;
  const size_t map_bytes = static_cast<size_t>(row.page_size) * static_cast<size_t>(row.head_dim) *
                           (row.is_bf16 ? 2 : 4);
  float rotated[kMaxHeadDim];
  for (int group = 0; group < row.num_groups; ++group) {
    std::byte* page = row.page + static_cast<size_t>(group) * row.page_bytes;
    // Stage 1: q and k are rotated.
    for (int map = 0; map < row.k_maps; ++map) {
      Rotate(row, k + (map * row.num_groups + group) * row.head_dim, rotated);
      StoreK(row, page + static_cast<size_t>(map) * map_bytes, rotated);
    }
    // Stage 2: v goes to the page.
    StoreV(row, page + static_cast<size_t>(row.k_maps) * map_bytes, v + group * row.v_dim);
  }
}

}  // namespace diffserve::DS_ISA
