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

KvCache::KvCache(KvFormat format, int num_layers, int num_pages)
    : KvCache(format, num_layers, num_pages,
              HostMemory(BytesPerPage(format, num_layers) * static_cast<size_t>(num_pages))) {}

KvCache::KvCache(KvFormat format, int num_layers, int num_pages, std::shared_ptr<std::byte> memory)
    : format_(format), num_layers_(num_layers), num_pages_(num_pages), memory_(std::move(memory)) {}

PagedKv KvCache::Layer(int layer) {
  DS_CHECK(layer >= 0 && layer < num_layers_, "no such layer");
  return {memory_.get() + BytesPerPage(format_, 1) * static_cast<size_t>(num_pages_) *
                              static_cast<size_t>(layer),
          format_};
}

size_t KvCache::BytesPerPage(const KvFormat& format, int num_layers) {
  return static_cast<size_t>(format.PageBytes()) * static_cast<size_t>(format.num_groups) *
         static_cast<size_t>(num_layers);
}

}  // namespace diffserve
