// KvCache: the memory of all KV pages of one rank: num_layers x num_pages x num_groups pages. It
// knows no policy; which page belongs to whom is engine/page_pool.h's business. What a page
// is, KvFormat says.
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
