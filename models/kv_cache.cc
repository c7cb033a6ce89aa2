#include "models/kv_cache.h"

#include "kernels/base/check.h"

namespace diffserve {

KvCache::KvCache(PagedKvLayout layout, int num_layers, int num_pages)
    : layout_(layout), num_pages_(num_pages), memory_(BytesPerPage(layout, num_layers) * static_cast<size_t>(num_pages)) {}

PagedKvLayer KvCache::Layer(int layer) {
  const size_t layer_bytes = BytesPerPage(layout_, 1) * static_cast<size_t>(num_pages_);
  const size_t offset = layer_bytes * static_cast<size_t>(layer);
  DS_CHECK(layer >= 0 && offset + layer_bytes <= memory_.size_bytes(), "no such layer");
  return {memory_.as<std::byte>() + offset, layout_};
}

size_t KvCache::BytesPerPage(const PagedKvLayout& layout, int num_layers) {
  return layout.page_bytes() * static_cast<size_t>(layout.num_groups) * static_cast<size_t>(num_layers);
}

}  // namespace diffserve
