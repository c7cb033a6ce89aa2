// KvCache: the memory of all KV pages of a model, num_layers x num_pages x num_groups of them. It
// knows no policy: engine/page_pool.h says which page belongs to whom, KvFormat what a page is.
#pragma once

#include <memory>

#include "kernels/attention/kv_format.h"

namespace diffserve {

class KvCache {
 public:
  KvCache(KvFormat format, int num_layers, int num_pages);  // in the host's memory
  // In memory taken elsewhere, of BytesPerPage * num_pages bytes at least.
  KvCache(KvFormat format, int num_layers, int num_pages, std::shared_ptr<std::byte> memory);

  PagedKv Layer(int layer);
  const KvFormat& format() const { return format_; }
  int num_layers() const { return num_layers_; }
  int num_pages() const { return num_pages_; }
  // Bytes that one page id takes over all layers and groups.
  static size_t BytesPerPage(const KvFormat& format, int num_layers);

 private:
  KvFormat format_;
  int num_layers_;
  int num_pages_;
  std::shared_ptr<std::byte> memory_;
};

}  // namespace diffserve
