// KvCache: the memory of all KV pages of one rank: num_layers x num_pages x num_groups pages (paged_kv.h). It knows no policy;
// which page belongs to whom is engine/page_pool.h's business.
#pragma once

#include "kernels/attention/paged_kv.h"
#include "kernels/base/tensor.h"

namespace diffserve {

class KvCache {
 public:
  KvCache(PagedKvLayout layout, int num_layers, int num_pages);

  PagedKvLayer Layer(int layer);
  const PagedKvLayout& layout() const { return layout_; }
  int num_pages() const { return num_pages_; }
  // Bytes that one page id takes over all layers and groups.
  static size_t BytesPerPage(const PagedKvLayout& layout, int num_layers);

 private:
  PagedKvLayout layout_;
  int num_pages_;
  Buffer memory_;
};

}  // namespace diffserve
