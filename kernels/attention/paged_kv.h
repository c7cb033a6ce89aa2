// The layout of KV pages, shared by every kernel that reads or writes them.
//
// A page id names, in each layer and each KV group, one page of `page_size` consecutive slots (a
// slot holds one token). The page of one layer and group is contiguous: K1 | K2 (if k_maps == 2) |
// V. Within it
//   K (each map): [head_dim / kPack][page_size][kPack], so that neighbouring slots lie in
//   neighbouring SIMD lanes;
//                 kPack is 1 for float32 and 2 for bfloat16 (a pair of dims is one 32-bit lane);
//   V:            [page_size][v_dim].
// K is rotated before it is stored. Slots that no token has been written to hold arbitrary bits
// (NaNs included): a kernel must not let them into a result, not even multiplied by zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention/diff_spec.h"
#include "kernels/base/dtype.h"

namespace diffserve {

struct PagedKvLayout {
  int page_size = 16;  // slots; a multiple of 16
  int num_groups = 0;
  int k_maps = 1;
  int head_dim = 0;  // even
  int v_dim = 0;
  DType dtype = DType::kFloat32;  // kFloat32 or kBFloat16

  static PagedKvLayout Of(const DiffSpec& spec, int page_size, DType dtype) {
    return {page_size, spec.num_kv_groups, spec.k_maps, spec.head_dim, spec.v_dim, dtype};
  }

  size_t k_map_elements() const {
    return static_cast<size_t>(page_size) * static_cast<size_t>(head_dim);
  }
  size_t v_offset_elements() const { return static_cast<size_t>(k_maps) * k_map_elements(); }
  size_t page_elements() const {
    return v_offset_elements() + static_cast<size_t>(page_size) * static_cast<size_t>(v_dim);
  }
  size_t page_bytes() const { return page_elements() * SizeOf(dtype); }  // one layer, one group

  // Element offset of K[map][dim] of `slot` within a page.
  size_t KOffset(int map, int dim, int slot) const {
    const size_t pack = dtype == DType::kBFloat16 ? 2 : 1;
    const size_t d = static_cast<size_t>(dim);
    return static_cast<size_t>(map) * k_map_elements() +
           (d / pack * static_cast<size_t>(page_size) + static_cast<size_t>(slot)) * pack +
           d % pack;
  }
  size_t VOffset(int dim, int slot) const {
    return v_offset_elements() + static_cast<size_t>(slot) * static_cast<size_t>(v_dim) +
           static_cast<size_t>(dim);
  }
};

// The pages of one layer: page `id` of group g starts at base + (id * num_groups + g) * page_bytes.
struct PagedKvLayer {
  std::byte* base = nullptr;
  PagedKvLayout layout;

  std::byte* Page(int32_t page_id, int group) const {
    return base + (static_cast<size_t>(page_id) * static_cast<size_t>(layout.num_groups) +
                   static_cast<size_t>(group)) *
                      layout.page_bytes();
  }
};

// The rows that one sequence contributes to a batch: its tokens [position, position + num_rows),
// after which the sequence has position + num_rows tokens in the cache. pages[i] holds slots [i *
// page_size, (i + 1) * page_size).
struct SequenceRows {
  int first_row = 0;  // of the batch's row-major activations
  int num_rows = 0;
  int position = 0;
  const int32_t* pages = nullptr;
};

}  // namespace diffserve
