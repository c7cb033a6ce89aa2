// KvCache: the memory of all KV pages of one rank: num_layers x num_pages x num_groups pages. It
// knows no policy; which page belongs to whom is engine/page_pool.h's business. In the host's
// memory a page is laid out as paged_kv.h says, in a CUDA device's as kv_image.h does, in the same
// number of bytes.
#pragma once

#include <memory>

#include "kernels/attention/paged_kv.h"

namespace diffserve {

class KvCache {
 public:
  KvCache(PagedKvLayout layout, int num_layers, int num_pages);  // in the host's memory
  // In memory taken elsewhere, of BytesPerPage * num_pages bytes at least.
  KvCache(PagedKvLayout layout, int num_layers, int num_pages, std::shared_ptr<std::byte> memory);

  PagedKvLayer Layer(int layer);
  const PagedKvLayout& layout() const { return layout_; }
  int num_layers() const { return num_layers_; }
  int num_pages() const { return num_pages_; }
  // Bytes that one page id takes over all layers and groups.
  static size_t BytesPerPage(const PagedKvLayout& layout, int num_layers);

 private:
  PagedKvLayout layout_;
  int num_layers_;
  int num_pages_;
  std::shared_ptr<std::byte> memory_;
};

}  // namespace diffserve
