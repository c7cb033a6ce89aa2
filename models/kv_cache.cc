#include "models/kv_cache.h"

#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/tensor.h"

namespace diffserve {

namespace {

std::shared_ptr<std::byte> HostMemory(size_t size_bytes) {
  const auto buffer = std::make_shared<Buffer>(size_bytes);
  return {buffer, buffer->as<std::byte>()};
}

}  // namespace

KvCache::KvCache(PagedKvLayout layout, int num_layers, int num_pages)
    : KvCache(layout, num_layers, num_pages,
              HostMemory(BytesPerPage(layout, num_layers) * static_cast<size_t>(num_pages))) {}

KvCache::KvCache(PagedKvLayout layout, int num_layers, int num_pages,
                 std::shared_ptr<std::byte> memory)
    : layout_(layout), num_layers_(num_layers), num_pages_(num_pages), memory_(std::move(memory)) {}

PagedKvLayer KvCache::Layer(int layer) {
  DS_CHECK(layer >= 0 && layer < num_layers_, "no such layer");
  return {memory_.get() + BytesPerPage(layout_, 1) * static_cast<size_t>(num_pages_) *
                              static_cast<size_t>(layer),
          layout_};
}

size_t KvCache::BytesPerPage(const PagedKvLayout& layout, int num_layers) {
  return layout.page_bytes() * static_cast<size_t>(layout.num_groups) *
         static_cast<size_t>(num_layers);
}

}  // namespace diffserve
